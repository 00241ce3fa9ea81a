/** The name of a failure as logs and the wire have it: `FencedOut` is FENCED_OUT. */
export const codeOf = (failure: { readonly _tag: string }): string =>
  failure._tag.replaceAll(/(?<=[a-z])[A-Z]/gu, (letter) => `_${letter}`).toUpperCase()
