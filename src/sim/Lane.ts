import type { Scheduler } from "effect"
import type { Process } from "./Node.ts"

/** The dispatcher of one fiber under `pct`, which needs to tell fibers apart; otherwise one for the whole process. */
export class Lane implements Scheduler.SchedulerDispatcher {
  priority: number
  private readonly process: Process

  constructor(process: Process, priority: number) {
    this.process = process
    this.priority = priority
  }

  /** Called by Effect, for a fiber of this process or for a Queue made in it. A fiber of another node has no business here. */
  scheduleTask(task: () => void, _priority: number): void {
    this.process.calledBy(this.process.world.running)
    this.process.push(task, this)
  }

  /** Only `runSync` flushes, and that brings its own scheduler. */
  flush(): void {}
}
