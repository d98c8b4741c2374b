"""Classes and functions of a program that keep computed values: in another process they do what they do here."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PROGRAM = """
    import functools, pickle, sys, weakref
    from dataclasses import dataclass
    from functools import cache, cached_property, lru_cache, singledispatch, singledispatchmethod
    from twinkle_ray.objects.pickling import pack

    @lru_cache(maxsize=7, typed=True)
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    @singledispatch
    def kind(value):
        return "other"

    @kind.register
    def _(value: int):
        return "int"

    class Memo(cached_property):
        note = "own"

    class Maker:
        objects = weakref.WeakValueDictionary()
        alive = weakref.WeakSet()

        @cached_property
        def one(self):
            return 1

        @Memo
        def two(self):
            return 2

        @lru_cache
        def times(self, n):
            return n * self.two

        @singledispatchmethod
        def kind(self, value):
            return "other"

        @kind.register
        def _(self, value: int):
            return "int"

        @staticmethod
        @cache
        def after(n):
            return n + 1

        @classmethod
        @cache
        def name(cls, n):
            return cls.__name__, n

    @dataclass
    class Row:
        x: int

        @cached_property
        def twice(self):
            return 2 * self.x

    def told(maker, row, fresh, made, nameless):
        maker.objects[1] = maker
        maker.alive.add(maker)
        return repr([
            fib(10), fib.cache_parameters(), fib.__name__, fib.__wrapped__.__name__, kind(1), kind("a"), vars(maker),
            maker.one, maker.two, Maker.two.note, maker.times(3), maker.kind(1), maker.kind("a"), Maker.after(1),
            Maker.name(2), vars(row), row.twice, fresh.twice, len(Maker.objects), len(Maker.alive),
            made(3), nameless(2),
        ])

    maker, row = Maker(), Row(4)
    maker.one, row.twice, fib(5)
    arguments = maker, row, Row(5), lru_cache(lambda n: n * 100), lru_cache(functools.partial(pow, 2))
    sys.stdout.buffer.write(pickle.dumps((pack((told, arguments)), told(*arguments))))
"""
READ = """
    import pickle, sys
    packed, expected = pickle.load(sys.stdin.buffer)
    told, arguments = packed.open()
    assert told(*arguments) == expected, (told(*arguments), expected)
"""


def test_kept_values_are_left_or_sent_as_their_kind_is() -> None:
    def run(source: str, given: bytes = b"") -> bytes:
        command = [sys.executable, "-c", textwrap.dedent(source)]
        done = subprocess.run(command, input=given, capture_output=True, timeout=100)
        assert not done.returncode, done.stderr.decode()
        return done.stdout

    run(READ, run(PROGRAM))
