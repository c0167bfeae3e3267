"""Tells which requests were in which batch of a Python model of Triton, where nothing can be preloaded into the server.

Put this file beside model.py, and into its initialize, at the end:

    from squall_batches import record

    record(self, args)

Each process of the model, one an instance, then has a ring in a file: `squall run --server URL` takes the batches out
of it, docs/batches.md says what they tell. The folder is that of SQUALL_BATCHES in the server's environment, else
FOLDER; without one nothing is done. Of a request only its id and the shape of its first input are looked at.

Nothing that goes wrong here reaches the model: it is one line on the server's standard error, and batches are not
recorded from then on. The ring is that of squall's library for servers (actors/inject/ring.h): nobody waits for its
reader, and a batch that finds no room is counted. Runs on Python 3.8 and later, on Linux, and needs nothing else.
"""

import contextlib
import errno
import json
import mmap
import os
import resource
import struct
import sys
import threading
import time

FOLDER = ""

_DEFAULT_BYTES, _LEAST_BYTES, _MOST_BYTES = 1 << 20, 64 << 10, 1 << 30
_HEADER_BYTES = 4096
_HEADER = struct.Struct("<8sIIQqQ")
_LAYOUT, _HOOK = 1, 1
_WRITTEN, _LOST, _READ = 64 // 8, 72 // 8, 128 // 8  # places in the header, in words of 8 bytes
_FRAME = struct.Struct("<IIiiqqqqqQIIIiHHI")
_MARKER = 0x31425153
_MOST_FRAME = 128 << 10
_ID_BYTES, _NAME_BYTES = 128, 256
_ID_LENGTH = struct.Struct("<H")
_NOT_KNOWN = 0  # of Triton's own instants: when the batch was handed over, and when its answers were


def record(model, args):
    """From now on, batches of `model`; `args` as Triton gave them to its initialize. Never raises."""
    folder = os.environ.get("SQUALL_BATCHES") or FOLDER
    try:
        own = model.execute
        if folder and not hasattr(own, "squall_batches"):
            recorder = _Recorder(folder, args)
            model.execute = recorder.around(own)
    except Exception as error:  # whatever it is, the model is to load
        _say(error, folder)


class _Recorder:
    """The batches of one instance of a model."""

    def __init__(self, folder, args):
        self._folder = folder
        self._is_batched = json.loads(args["model_config"]).get("max_batch_size", 0) > 0
        is_gpu = args["model_instance_kind"] == "GPU"
        self._device = int(args["model_instance_device_id"]) if is_gpu else -1
        self._version = int(args["model_version"])
        names = (args["model_name"], args["model_instance_name"])
        self._names = [_cut(name, _NAME_BYTES) for name in names]
        self._ring = _Ring(folder)
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self):
        """A child's batches go into a ring of its own, made at its first; this one's is still the parent's."""
        if self._ring is not None:
            self._ring = _Ring(self._folder, is_later=True)

    def around(self, own):
        """`own`, the model's execute, as it is but for the record."""

        def execute(requests):
            seen = self._look(requests)
            begun_ns = time.monotonic_ns()
            try:
                answer = own(requests)
            except BaseException:
                self._note(seen, begun_ns, has_failed=True)
                raise
            if hasattr(answer, "__await__"):  # it executes when Triton awaits it
                return self._awaited(answer, seen, begun_ns)
            self._note(seen, begun_ns, has_failed=False)
            return answer

        execute.squall_batches = True
        return execute

    async def _awaited(self, answer, seen, begun_ns):
        try:
            found = await answer
        except BaseException:
            self._note(seen, begun_ns, has_failed=True)
            raise
        self._note(seen, begun_ns, has_failed=False)
        return found

    def _look(self, requests):
        """Members, their rows and their ids, before the model may change the list; None: nothing is recorded."""
        if self._ring is None:
            return None
        try:
            return len(requests), sum(map(self._rows, requests)), [_request_id(one) for one in requests]
        except Exception as error:
            self._end(error)
            return None

    def _rows(self, request):
        """As the Python backend counts them: the first dimension of the first input of a model that batches."""
        if not self._is_batched:
            return 1
        inputs = request.inputs()
        return int(inputs[0].shape()[0]) if inputs else 1

    def _note(self, seen, begun_ns, has_failed):
        end_ns = time.monotonic_ns()
        ring = self._ring
        if seen is None or ring is None:
            return
        try:
            ring.put(lambda pid: self._frame(pid, seen, begun_ns, end_ns, has_failed))
        except Exception as error:
            self._end(error)

    def _frame(self, pid, seen, begun_ns, end_ns, has_failed):
        n, rows, ids = seen
        model, instance = self._names
        parts, n_ids = [b"", model, instance], 0
        n_bytes = _FRAME.size + len(model) + len(instance)
        for one in ids:
            if n_bytes + _ID_LENGTH.size + len(one) > _MOST_FRAME - 8:
                break  # it is counted all the same
            parts += _ID_LENGTH.pack(len(one)), one
            n_bytes += _ID_LENGTH.size + len(one)
            n_ids += 1
        parts.append(bytes(-n_bytes % 8))
        n_bytes += -n_bytes % 8
        parts[0] = _FRAME.pack(
            _MARKER, n_bytes, pid, threading.get_native_id(), self._version, _NOT_KNOWN, begun_ns, end_ns, _NOT_KNOWN,
            rows, n, n if has_failed else 0, n_ids, self._device, len(model), len(instance), _HOOK,
        )  # fmt: skip
        return b"".join(parts)

    def _end(self, error):
        self._ring = None
        _say(error, self._folder)


class _Ring:
    """The one writer of a ring: threads of this process. Raises OSError where it cannot be made.

    A frame is whole in the file before the position behind it is stored, by one store of 8 aligned bytes (`memoryview`
    of format Q copies them as one word), so that a process that is killed at any instant leaves whole frames. The lock
    is given back and taken between the two: that keeps their order on every CPU.
    """

    def __init__(self, folder, is_later=False):
        self._folder = folder
        self._lock = threading.Lock()
        self._map = None
        if not is_later:
            self._make()

    def _make(self):
        self._pid, self._size = os.getpid(), _asked_bytes()
        name = f"batches-{self._pid}-{os.urandom(16).hex()}.ring"
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._make_in(folder, name)
        finally:
            os.close(folder)

    def _make_in(self, folder, name):
        """The file gets the name that a reader looks for when it is whole."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name + ".new", flags, 0o600, dir_fd=folder)
        try:
            self._fill(file)
            os.rename(name + ".new", name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            self._map = None
            os.unlink(name + ".new", dir_fd=folder)
            raise
        finally:
            os.close(file)

    def _fill(self, file):
        """Its room is reserved now: a write into a mapped file on a full disk would end the process."""
        n_bytes = _HEADER_BYTES + self._size
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if most not in (resource.RLIM_INFINITY, -1) and n_bytes > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        os.fchmod(file, 0o600)  # whatever the umask is
        os.posix_fallocate(file, 0, n_bytes)
        mapped = mmap.mmap(file, n_bytes)
        _HEADER.pack_into(mapped, 0, b"SQBATCH\0", _LAYOUT, _HEADER_BYTES, self._size, self._pid, _HOOK)
        self._map, self._words = mapped, memoryview(mapped).cast("Q")
        self._written = self._n_lost = 0

    def put(self, frame_of):
        """The bytes that `frame_of` gives for the number of this process."""
        with self._lock:
            if self._map is None:
                self._make()
            frame = frame_of(self._pid)
            used = self._written - self._words[_READ]
            if not 0 <= used <= self._size or len(frame) > self._size - used:
                self._n_lost += 1
                self._words[_LOST] = self._n_lost
                return
            self._copy(frame, self._written % self._size)
            self._written += len(frame)
        with self._lock:  # another thread's frame before that position is whole too by then
            self._words[_WRITTEN] = self._written

    def _copy(self, frame, at):
        start = _HEADER_BYTES + at
        n_first = min(self._size - at, len(frame))
        self._map[start : start + n_first] = frame[:n_first]
        self._map[_HEADER_BYTES : _HEADER_BYTES + len(frame) - n_first] = frame[n_first:]


def _asked_bytes():
    text = os.environ.get("SQUALL_BATCHES_BYTES", "")
    if not (text.isascii() and text.isdigit()):
        return _DEFAULT_BYTES
    n_bytes = min(max(int(text[:20]), _LEAST_BYTES), _MOST_BYTES)
    return (n_bytes + _HEADER_BYTES - 1) // _HEADER_BYTES * _HEADER_BYTES


def _cut(text, n_bytes):
    """As UTF-8, at most `n_bytes` of it."""
    return text[:n_bytes].encode("utf-8", "replace")[:n_bytes]


def _request_id(request):
    """Empty where there is none, or one that Triton cannot give to Python."""
    try:
        return _cut(request.request_id(), _ID_BYTES)
    except (UnicodeError, TypeError):
        return b""


def _say(error, folder):
    is_of_folder = isinstance(error, OSError) and error.strerror
    why = f"{folder}: {error.strerror}" if is_of_folder else str(error) or type(error).__name__
    with contextlib.suppress(Exception):  # there is nowhere to say it
        print(f"squall: batches are not recorded: {why}", file=sys.stderr, flush=True)
