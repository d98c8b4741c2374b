"""Imported by each Python that tests start: the collector of cycles walks old objects seldom.

Hundreds of processes load torch or Ray, whose objects live on, and it took a sixth of the time that this needs.
"""

import gc

gc.set_threshold(gc.get_threshold()[0], 1000)
