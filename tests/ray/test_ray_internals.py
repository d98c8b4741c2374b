"""What `ray_internals` uses is in this Ray, and does what is said of it."""

from __future__ import annotations

import inspect
import logging
import re
import threading
from importlib import import_module

import pytest
import ray

from twinkle_ray import ray_internals


def test_labels_and_printers_of_worker_lines() -> None:
    assert ray_internals.actor_name_marker() == ":actor_name:"
    dispatcher, seen = ray_internals.log_dispatcher(), list[object]()
    line = {"lines": [], "is_err": False, "job": None, "pid": "1", "ip": "", "actor_name": "", "task_name": ""}
    dispatcher.add_handler("twinkle_test", seen.append)
    try:
        assert "twinkle_test" in [name for name, _ in dispatcher.handlers]
        dispatcher.emit(line)  # of a driver's own handlers too, where a session is open
    finally:
        dispatcher.remove_handler("twinkle_test")
    assert seen == [line]
    for printer in ray_internals.log_deduplicators():
        assert printer.skip_re is None or isinstance(printer.skip_re, re.Pattern)
        assert "self.skip_re" in inspect.getsource(type(printer).deduplicate)


@pytest.mark.parametrize(("kind", "variable"), [("GPU", "CUDA_VISIBLE_DEVICES"), ("CPU", None), ("abacus", None)])
def test_variables_of_devices(kind: str, variable: str | None) -> None:
    assert ray_internals.visibility_variable(kind) == variable


def test_the_loopback_switch_is_read_at_the_start_and_put_back() -> None:
    constants = import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    with ray_internals.on_loopback():
        assert constants.ENABLE_RAY_CLUSTER is False
    assert constants.ENABLE_RAY_CLUSTER is before
    readers = [import_module(f"ray._private.{name}") for name in ("node", "services", "worker")]
    assert any("ENABLE_RAY_CLUSTER" in inspect.getsource(module) for module in readers)


def test_the_line_of_the_token_comes_from_the_silenced_logger() -> None:
    name = "ray._private.authentication.authentication_token_setup"
    assert import_module(name).logger is logging.getLogger(name)
    level = logging.getLogger(name).level
    with ray_internals.quiet_token():
        assert logging.getLogger(name).level == logging.ERROR
    assert logging.getLogger(name).level == level


@pytest.mark.usefixtures("ray_cluster")
def test_free_resources_are_those_of_each_node() -> None:
    free, total = ray_internals.free_resources(), ray.available_resources()  # type: ignore[no-untyped-call]  # Ray's own gap
    assert set(free) == {node["NodeID"] for node in ray.nodes()}  # type: ignore[no-untyped-call]  # Ray's own gap
    assert sum(node.get("CPU", 0) for node in free.values()) == total["CPU"]


@pytest.mark.ray
def test_a_value_that_goes_out_of_scope_is_reported(ray_cluster: None) -> None:
    import twinkle_remote
    from twinkle_mesh import DeviceGroup

    with twinkle_remote.session("ray", groups=[DeviceGroup("one", 1, "CPU")]):
        gone = threading.Event()
        ref = ray.put(1)
        assert ray_internals.when_out_of_scope(ref, gone.set)
        held = ray.put([ref])
        del ref
        assert not gone.wait(0.5)
        del held
        assert gone.wait(30)
