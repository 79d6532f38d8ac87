"""A Ray cluster that this process has joined: who is there, an actor on a given node, a call to one with our errors.

Ray carries calls and knows who is there. Actors belong to the driver: they end with it, however it ends. Ray's own
handling of signals is kept out by joining from another thread than the main one.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, ClassVar, NamedTuple, TypeVar

import ray
from ray import exceptions
from ray._private import auto_init_hook, state, worker  # no public name tells what drains, and what is free on a node
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient  # type: ignore[attr-defined]
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from overlap.cluster.addresses import NO_HEAD, check_address
from overlap.cluster.node_state import AUTH, token_of
from overlap.cluster.nodes import HeadLost, NodeLost, NodeSilent
from overlap.errors import ConfigError, one_line
from sandbox.errors import SandboxError

T = TypeVar("T")
JOIN_S, LOOKING_S, LOOK_S = 60.0, 25, 1.0
"""Without its head Ray ends this process after 60 s: what is to be ended in order has the rest."""
LEAVE_S, KILL_S = 6.0, 2.0
CALLS = 64
"""Calls that an actor serves at a time: two that wait, and a few that do not."""
_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"
_ROUNDS = 5
UNIMPLEMENTED = 12
"""What a server of gRPC says to a call that it does not know."""


class RayNodeInfo(NamedTuple):
    """A node as Ray knows it: its id, the address that it listens at, and the GPUs and cores that Ray counts there.
    ``drains``: it is about to go (`ray drain-node`, a notice of preemption); ``here``: this process runs on it.
    """

    key: str
    address: str
    alive: bool
    gpus: int
    cpus: int = 0
    drains: bool = False
    here: bool = False

    @property
    def name(self) -> str:
        """What a person reads of it."""
        return f"{self.address}-{self.key[:8]}"


class RayCluster:
    """The cluster at ``address`` ("host:port"). What works over it enters it each for itself, also side by side; the
    last one that leaves ends the connection.
    """

    def __init__(self, address: str) -> None:
        self.address, self.unauthenticated = address, os.environ.get(_MODE) == "disabled"
        self._users = 0
        self._joins: asyncio.Task[None] | None = None
        self._leaves: asyncio.Task[None] | None = None
        self._watches: asyncio.Task[HeadLost] | None = None
        self._token_taken = False
        self._connection = _Connection(address)

    async def enter(self) -> None:
        """Join, unless that is done. Raises ConfigError; also then ``leave`` is due."""
        self._users += 1
        if self._joins is None:
            self._joins = asyncio.create_task(self._join(), name="join the cluster")
        await asyncio.shield(self._joins)

    async def leave(self) -> None:
        """For each that has entered, or tried to; with the last one the connection ends, and every actor with it."""
        self._users -= 1
        if self._users or self._joins is None:
            return
        connection, self._connection = self._connection, _Connection(self.address)
        ended = [task for task in (self._joins, self._watches) if task is not None]
        self._joins = self._watches = None
        self._leaves = asyncio.create_task(self._leave(connection, ended), name="leave the cluster")
        await asyncio.shield(self._leaves)  # who is cancelled over it leaves all the same

    async def _leave(self, connection: _Connection, ended: Sequence[asyncio.Task[Any]]) -> None:
        for task in ended:
            task.cancel()
        try:
            try:
                await apart(connection.close, LEAVE_S)
            except TimeoutError:
                atexit.unregister(ray.shutdown)  # it would wait for the one that hangs
            await asyncio.gather(*ended, return_exceptions=True)
        finally:
            if self._token_taken:
                self._token_taken = False
                _drop_token()

    async def lost(self) -> HeadLost:
        """Wait until the head is lost, and say how. For whoever has entered; cancelled when the last one leaves."""
        if self._watches is None:
            self._watches = asyncio.create_task(self._watch(), name="watch the head")
        return await asyncio.shield(self._watches)

    async def _watch(self) -> HeadLost:
        while True:
            try:
                await self.look()
            except HeadLost as error:
                return error
            await asyncio.sleep(LOOK_S)

    async def look(self) -> list[RayNodeInfo]:
        """Every node that is there or was. Raises HeadLost where the head does not answer, or takes us for dead."""
        nodes, draining, here = await self._asked(
            lambda: (ray.nodes(), state.state.get_draining_nodes(), ray.get_runtime_context().get_node_id())
        )
        places = [_place(node, draining, here) for node in nodes]
        if any(place.here and not place.alive for place in places):
            raise HeadLost("Ray on this machine has ended, or was cut off from the head")
        return places

    async def free(self) -> dict[str, int]:
        """Whole cores of each node, by its key, that nobody has taken of what Ray counts. Raises HeadLost."""
        rest = await self._asked(state.available_resources_per_node)
        return {key: int(resources.get("CPU", 0.0)) for key, resources in rest.items()}

    async def actor(self, place: RayNodeInfo, kind: type[Any], *args: Any, cpus: int = 0) -> Any:
        """One of ``kind``, a class of coroutines, made on that node. Of what Ray counts there it takes ``cpus``. Raises
        HeadLost.
        """
        there = NodeAffinitySchedulingStrategy(place.key, soft=False)
        options = {"num_cpus": cpus, "max_restarts": 0, "max_concurrency": CALLS, "scheduling_strategy": there}
        return await self._asked(lambda: ray.remote(kind).options(**options).remote(*args))  # the head is told of it

    async def _asked(self, ask: Callable[[], T]) -> T:
        """What the head says. Raises HeadLost where it does not answer."""
        try:
            with _once_it_speaks(ask) as asks:
                return (await _patiently(asks, LOOKING_S))[0]
        except (TimeoutError, ConnectionError, RuntimeError, exceptions.RayError) as error:
            why = last_line(error) or f"no answer for {LOOKING_S} s"
            raise HeadLost(f"its head at {self.address} does not answer ({why})") from error

    async def _join(self) -> None:
        if self._leaves is not None and not self._leaves.done():  # one that is may be of a loop that is closed
            await asyncio.wait([self._leaves])
        if not self.unauthenticated:
            self._token_taken = _take_token(self.address)
        if os.environ.get(_MODE) != "token" and not self.unauthenticated:
            way_out = "the driver has no token for it: set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH; or, in a "
            way_out += "network where everybody may run anything, RAY_AUTH_MODE=disabled"
            raise ConfigError("cluster.address", self.address, way_out)
        try:
            await apart(self._connection.open, JOIN_S)
        except ConfigError:
            raise
        except (TimeoutError, ConnectionError, RuntimeError, ValueError, exceptions.RayError) as error:
            way_out = f"cannot be joined ({_why(error) or 'no answer'}): see `overlap cluster status {self.address}`"
            raise ConfigError("cluster.address", self.address, way_out) from error


class _Connection:
    """Opened and closed in threads: one that is open only after it was closed is closed then. A process has one at a
    time: the next is opened when that is done.
    """

    _one = threading.Lock()
    head: ClassVar[GcsClient | None] = None
    """That of the one that is open."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._open = self._closed = False

    def open(self) -> None:
        head = greet(self._address)
        with self._one:
            if not self._closed:
                _Connection.head = head
                _do_nothing_unasked()
                ray.init(address=self._address, log_to_driver=False, configure_logging=False)
                self._open = True

    def close(self) -> None:
        self._closed = True
        with self._one:  # once it is open, where that is being done
            if self._open:
                self._open, _Connection.head = False, None
                ray.shutdown()


@contextlib.contextmanager
def _once_it_speaks(ask: Callable[[], T]) -> Iterator[Callable[[], list[T]]]:
    """For a thread: what the head says to a call of Ray's, in a list; none where this ends before.

    Such a call waits for a silent head in memory that ``ray.shutdown`` gives back: so it is made when the head has said
    something to one that ends in time, and not at all when nobody waits for it any more.
    """
    given_up = threading.Event()

    def asks() -> list[T]:
        head = _Connection.head
        while head is not None and not given_up.is_set():
            with contextlib.suppress(exceptions.RpcError):
                head.check_alive([], timeout=LOOK_S)
                break
        return [] if given_up.is_set() else [ask()]

    try:
        yield asks
    finally:
        given_up.set()


def _do_nothing_unasked() -> None:
    """What Ray does by itself waits for a head, for a minute or for ever where that is gone: it joins when a call comes
    after the last one left, and tells the head of the exception that ends this process.
    """
    auto_init_hook.enable_auto_connect = False
    if sys.excepthook is worker.custom_excepthook:
        sys.excepthook = worker.normal_excepthook


def greet(address: str) -> GcsClient:
    """A head, which answers within the time that it is given.

    Raises ConfigError where no head is, or none that lets us in; Ray itself would try for long.
    """
    field = "cluster.address"
    check_address(field, address)
    try:
        return GcsClient(address=address)
    except exceptions.AuthenticationError as error:
        way_out = "asks for another token than the driver's: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to that"
        raise ConfigError(field, address, way_out) from error
    except exceptions.RpcError as error:
        if error.rpc_code != UNIMPLEMENTED:
            raise
        raise ConfigError(field, address, NO_HEAD) from error


async def call(waits: Awaitable[T]) -> T:
    """What an actor says. Raises SandboxError where it did, NodeLost for an actor that is gone or failed, and
    NodeSilent for one that cannot be reached now.
    """
    try:
        return await waits
    except exceptions.ActorUnavailableError as error:
        raise NodeSilent(last_line(error)) from error
    except exceptions.RayActorError as error:
        raise NodeLost(last_line(error)) from error
    except exceptions.RayTaskError as error:
        if isinstance(cause := error.cause, SandboxError):
            raise cause from None
        raise NodeLost(f"its agent raised {type(error.cause).__name__}: {error.cause}") from error
    except exceptions.RayError as error:
        raise NodeLost(last_line(error)) from error


async def end(actor: Any, seconds: float) -> bool:
    """Have an actor close what it has, for so long at most, then end it. Whether all that it had has ended for sure: so
    it has where the actor was gone before.
    """
    try:
        async with asyncio.timeout(seconds):
            await call(actor.close.remote())
        return True
    except NodeLost:
        return True
    except (NodeSilent, SandboxError, TimeoutError):
        return False
    finally:  # also when we are cancelled
        with (
            contextlib.suppress(TimeoutError, exceptions.RayError),  # where Ray hears nothing either, it has ended
            _once_it_speaks(lambda: ray.kill(actor)) as kills,
        ):
            await apart(kills, KILL_S)


async def offset(clock: Callable[[], Awaitable[float]]) -> tuple[float, float]:
    """How far an actor's monotonic clock, as ``clock`` asks for it, is ahead of ours, s, and by how much that may be
    wrong: half of the quickest of some rounds (Cristian, "Probabilistic clock synchronization", 1989).
    """
    rounds = []
    for _ in range(_ROUNDS):
        before = time.monotonic()
        there = await call(clock())
        after = time.monotonic()
        rounds.append((after - before, there - (before + after) / 2))
    took, ahead = min(rounds)
    return ahead, took / 2


async def apart(work: Callable[[], T], seconds: float) -> T:
    """What a call of Ray's says, which blocks and may do so for ever: in a thread that nobody waits for at the end.
    Raises what it raises, and TimeoutError.
    """
    said: Future[T] = Future()

    def run() -> None:
        try:
            said.set_result(work())
        except Exception as error:
            said.set_exception(error)

    waits = asyncio.wrap_future(said)
    threading.Thread(target=run, name="ray call", daemon=True).start()
    async with asyncio.timeout(seconds):
        return await asyncio.shield(waits)


async def _patiently(work: Callable[[], T], seconds: int) -> T:
    """The same, where only seconds count in which this process ran: one that stood still has not waited."""
    asked = asyncio.ensure_future(apart(work, float("inf")))
    try:
        for _ in range(seconds):
            await asyncio.wait([asked], timeout=1.0)
            if asked.done():
                return asked.result()
    finally:
        asked.cancel()
    raise TimeoutError


def last_line(error: BaseException) -> str:
    """The line that matters: the last one where an actor could not be made, for a traceback is before it."""
    lines = str(error).strip().splitlines() or [""]
    return lines[-1 if "creation task" in lines[0] else 0].strip()[:200]


def _why(error: BaseException) -> str:
    """Of a connection that could not be made: of versions that differ all lines, for they say which."""
    text = one_line(error, 300)
    return text if text.startswith("Version mismatch") else last_line(error)


def _take_token(address: str) -> bool:
    """Where the environment says nothing of tokens, use that of the node that ``overlap cluster up`` started here.
    Whether there is one.
    """
    if any(os.environ.get(name) for name in AUTH) or (path := token_of(address)) is None:
        return False
    os.environ[_MODE], os.environ[_TOKEN] = "token", str(path)
    _read_environment()
    return True


def _drop_token() -> None:
    del os.environ[_MODE], os.environ[_TOKEN]
    _read_environment()


def _read_environment() -> None:
    """Have Ray see what has changed in it since it was imported."""
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()


def _place(node: dict[str, Any], draining: dict[str, int], here: str) -> RayNodeInfo:
    key, counted = node["NodeID"], node.get("Resources", {})
    return RayNodeInfo(
        key,
        node["NodeManagerAddress"],
        bool(node["Alive"]),
        gpus=int(counted.get("GPU", 0)),
        cpus=int(counted.get("CPU", 0)),
        drains=key in draining,
        here=key == here,
    )
