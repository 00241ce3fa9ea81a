/**
 * What will happen, ordered by virtual time: a binary heap.
 */

import type { Fiber } from "effect"

/** Whose event it is. An event of a dead owner never happens, so killing a process needs no list of its timers. */
export interface EventOwner {
  readonly alive: boolean
  /** Keys the drawn order among events of the same microsecond. */
  readonly key: number
}

export class WorldEvent {
  readonly at: number
  /** Order among events of the same microsecond. */
  readonly tie: number
  readonly seq: number
  readonly owner: EventOwner | undefined
  /** Undefined once cancelled. */
  run: (() => void) | undefined
  /** Who waits for it and for nothing else: once it has ended, the event is cancelled. */
  sleeper: Fiber.Fiber<unknown, unknown> | undefined

  constructor(at: number, tie: number, seq: number, owner: EventOwner | undefined, run: () => void) {
    this.at = at
    this.tie = tie
    this.seq = seq
    this.owner = owner
    this.run = run
    this.sleeper = undefined
  }

  /** Whether it will really happen. */
  get due(): boolean {
    return (
      this.run !== undefined &&
      (this.owner === undefined || this.owner.alive) &&
      (this.sleeper === undefined || this.sleeper.pollUnsafe() === undefined)
    )
  }

  cancel(): void {
    this.run = undefined
  }
}

const before = (x: WorldEvent, y: WorldEvent): boolean =>
  x.at !== y.at ? x.at < y.at : x.tie !== y.tie ? x.tie < y.tie : x.seq < y.seq

export class EventQueue {
  private readonly heap: Array<WorldEvent> = []

  push(event: WorldEvent): void {
    const heap = this.heap
    let i = heap.length
    heap.push(event)
    while (i > 0) {
      const parent = (i - 1) >>> 1
      const above = heap[parent]!
      if (!before(event, above)) break
      heap[i] = above
      i = parent
    }
    heap[i] = event
  }

  /**
   * The earliest event that will really happen. Cancelled timers and timers of killed processes are dropped here, before
   * anybody looks at their time: otherwise a lease timer of a dead worker would still move the virtual clock.
   */
  peek(): WorldEvent | undefined {
    const heap = this.heap
    while (heap.length > 0) {
      const first = heap[0]!
      if (first.due) return first
      this.pop()
    }
    return undefined
  }

  pop(): void {
    const heap = this.heap
    const last = heap.pop()
    const size = heap.length
    if (last === undefined || size === 0) return
    let i = 0
    for (;;) {
      let child = 2 * i + 1
      if (child >= size) break
      if (child + 1 < size && before(heap[child + 1]!, heap[child]!)) child++
      const below = heap[child]!
      if (!before(below, last)) break
      heap[i] = below
      i = child
    }
    heap[i] = last
  }
}
