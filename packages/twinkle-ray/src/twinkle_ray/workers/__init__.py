"""Groups of workers: the actors, their node agents, and workers that are lost.

A worker is `rank_actor.RankActor`; a `group.RayGroup` sends tasks to those of one group. `groups.RayGroups` is the
backend over all groups, in the driver and in workers that call others, which have it by `worker_backend`.
"""
