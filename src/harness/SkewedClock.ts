/**
 * As a value of NODE_OPTIONS: shifts what the program takes for the time of day; its monotonic clock stays right, as with a
 * clock that is set wrong.
 */
export const skewed = (millis: number): string => {
  const script = `const now=Date.now.bind(Date),D=Date;globalThis.Date=class extends D{constructor(...a){if(a.length===0)super(now()+${millis});else super(...a)}static now(){return now()+${millis}}}`
  return `--import=data:text/javascript,${encodeURIComponent(script)}`
}
