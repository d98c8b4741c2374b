"""Deaths and restarts leave no classes behind: Ray keeps for good what `ray.remote` returns."""

from __future__ import annotations

import ast
import gc
import inspect
import os
from pathlib import Path
from typing import Any

import twinkle
import twinkle_ray
from twinkle import DeviceGroup, remote_class, remote_function
from twinkle_ray import restart
from twinkle_ray.cluster.nodes import remote_once
from twinkle_remote.backends.support import running

HERE = Path(next(iter(twinkle_ray.__path__)))


@remote_class()
class Counted:
    @remote_function(dispatch="all", collect="first")
    def pid(self) -> int:
        return os.getpid()


class Actor:
    def tell(self) -> int:
        return 1


def work() -> int:
    return 1


def test_each_class_and_function_has_one_form() -> None:
    assert remote_once(Actor) is remote_once(Actor)
    assert remote_once(Actor, (("control", 1),)) is remote_once(Actor, (("control", 1),))
    assert remote_once(work) is remote_once(work)


def test_nothing_else_makes_forms_of_classes_and_functions() -> None:
    places = [
        str(path.relative_to(HERE))
        for path in sorted(HERE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "ray.remote"
    ]
    assert set(places) == {"cluster/nodes.py"}


def test_a_driver_keeps_no_class_of_a_worker_that_was_replaced(ray_cluster: None) -> None:
    kept: list[tuple[int, int]] = []
    for _ in range(2):  # a session after another one starts with the same forms
        with twinkle.session("ray", groups=[DeviceGroup("one", 1, "CPU")], lazy_collect=False, restart="group"):
            counted = twinkle.on("one").create(Counted)
            backend: Any = running().backend
            pids = {counted.pid()}
            for renew in (backend.restart_ranks, backend.restart_ranks, lambda name, _: restart(name)):
                renew("one", [0])
                pids.add(counted.pid())
                gc.collect()
                objects = gc.get_objects()
                kept.append((_count(objects, inspect.Signature), _count(objects, type)))
            assert len(pids) == 4
    signatures, classes = zip(*kept[1:3], strict=True)
    assert signatures[0] == signatures[1] and classes[1] - classes[0] < 3, kept
    assert kept[-1][0] == kept[-3][0], kept


def _count(objects: list[Any], kind: type) -> int:
    return sum(isinstance(one, kind) for one in map(_known, objects))


def _known(one: Any) -> Any:
    return one if type(one) in (inspect.Signature, type) else None
