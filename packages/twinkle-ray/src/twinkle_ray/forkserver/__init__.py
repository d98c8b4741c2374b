"""Workers of a node start as forks of one process that has loaded their libraries.

Ray starts a worker as `python script arguments`. Here `python` is a small program, the launcher, which asks the node's
fork server for the process; the server has loaded Ray, and what the driver has loaded of the large libraries. Whatever
cannot be a fork is started by the launcher as usual: a different environment, another script, no server.
"""
