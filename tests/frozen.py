"""Imported last by a process that forks: the collector of cycles leaves alone what it has loaded, in its forks too.

A pass of the collector walks through all modules, and the fork copies every page of them.
"""

import gc

gc.collect()
gc.freeze()
