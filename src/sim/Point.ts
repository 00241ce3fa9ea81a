import { hashText, type Named } from "./Draw.ts"

/** A place in a program at which a fault can be planted: `submit.before`. */
export class Point implements Named {
  readonly name: string
  readonly key: number
  visits = 0
  /** Made with the first: most points have none. */
  triggers: Map<number, Array<() => void>> | undefined

  constructor(name: string) {
    this.name = name
    this.key = hashText(name)
  }
}

/** What is done at the nth visit. */
export const add = (triggers: Map<number, Array<() => void>>, nth: number, action: () => void): void => {
  const actions = triggers.get(nth)
  if (actions === undefined) triggers.set(nth, [action])
  else actions.push(action)
}

export const fire = (actions: ReadonlyArray<() => void> | undefined): void => {
  if (actions !== undefined) for (const action of actions) action()
}
