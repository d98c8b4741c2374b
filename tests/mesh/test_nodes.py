from __future__ import annotations

import copy
import pickle
import re

import pytest

from twinkle_mesh import Nodes


def test_nodes_are_values() -> None:
    nodes = Nodes(sizes=[8, 4])
    assert nodes == Nodes(sizes=(8, 4))
    assert nodes != Nodes(8)
    assert nodes != 8
    assert hash(nodes) == hash(Nodes(sizes=(8, 4)))
    assert pickle.loads(pickle.dumps(nodes)) == copy.deepcopy(nodes) == nodes
    assert nodes.spanned([0, 7]) == 1
    assert nodes.spanned([0, 8]) == 2
    with pytest.raises(AttributeError, match="sizes"):
        nodes.sizes = (1,)
    with pytest.raises(ValueError, match=re.escape("rank=12 is on no node: the nodes have (8, 4) ranks")):
        nodes.of(12)
