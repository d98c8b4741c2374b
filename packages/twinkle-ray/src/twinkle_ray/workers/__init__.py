"""Groups of workers: the actors, the queue of their tasks, and workers that are lost.

A worker is `rank_actor.RankActor`. A `group.RayGroup` gives tasks for those of one group to the process's
`task_queue.TaskQueue`, which sends them. `core.RayGroups` is the backend over all groups, in the driver and in workers.
"""
