"""`squall resume`: gathers what a broken run left on this machine's disk, and seals the run with it.

It needs no Ray and no server: the run directory, and the scratch folders that the run's processes kept here.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote

import pyarrow as pa
import pyarrow.compute as pc

from squall.actors.load.engine import BEFORE_ITS_TURN
from squall.actors.sampling.sampled import FILLED
from squall.actors.sampling.triton_trace import TRACE, traces_in
from squall.analysis.report.derive import derive, is_derived
from squall.analysis.report.summary_file import Summary
from squall.analysis.storage.beneath import refuse_ways_out
from squall.analysis.storage.clock_track import ClockTrack
from squall.analysis.storage.collected import KernelRecordingFacts
from squall.analysis.storage.deployed import ServerFacts
from squall.analysis.storage.held_folder import sole_holder
from squall.analysis.storage.home import sending_command
from squall.analysis.storage.intact import require_intact
from squall.analysis.storage.manifest import OPEN, Manifest
from squall.analysis.storage.schema import TABLES
from squall.analysis.storage.sealed import Unfinished, Verdict
from squall.analysis.storage.store import RunStore
from squall.analysis.storage.timeline import RunPhase, phase_spans
from squall.analysis.verdict.validity import judge_run
from squall.cluster.control.controlled import told_by_watches
from squall.cluster.driver.copies import copied_sites, is_whole, remove_copies
from squall.cluster.driver.ingest import Ledger, add_missing, ingest_file, model_names, notes_of_ties
from squall.cluster.driver.node_files import FilesHere, pieces_of
from squall.cluster.driver.nodes import label_of
from squall.cluster.driver.run import LOAD_STOPS, RunResult
from squall.cluster.driver.server_libraries import kernels_together
from squall.cluster.interrupts import Interrupts
from squall.cluster.node.agent import FIRST_SERVER
from squall.cluster.node.injected.batch_recording import BatchRecording
from squall.cluster.node.injected.kernel_recording import KernelRecording
from squall.cluster.node.scratch import folders_of
from squall.cluster.node.server_log import end_of_log, without_own_folders
from squall.cluster.node.spills import NodeFile, Spills
from squall.cluster.progress import Screen
from squall.scenarios.config.loader import scenario_of_run
from squall.scenarios.errors import ClusterError, ScenarioError, SquallError, StoreError
from squall.scenarios.plan.plan import Plan
from squall.scenarios.run_plan import RunPlan, plan_run
from squall.scenarios.units import NS_PER_S

_ENDED_WITHIN_S = 30.0
_LAST_REPLIES_NS = 2 * NS_PER_S
_READ_OF_SERVER = ("triton.log", "batches", "recorded", "kernels", "rings", "kernel-rings")
_NOT_HERE = "is not on this machine"
_NO_MASTER = "the load ended with the run's driver, and what Locust itself would have said of it is gone"
_NO_LOAD = "it was broken off before the load began"


def resume_run(run_dir: Path, interrupts: Interrupts) -> RunResult:
    """The run, sealed with all that lies here of it. A run that is sealed whole is only joined, where it was not.

    The caller holds `run_dir`. Raises ClusterError where processes of the run still write or its plan cannot be made
    again, StoreError where the disk has no room: the run stays as it was then, and so do the folders.
    """
    store, screen = RunStore.open(run_dir.resolve()), Screen()
    if store.manifest.is_whole:
        return _already_whole(store, screen, interrupts)
    resuming = _Resuming(store, screen)
    with interrupts.allowed():
        resuming.look()
    interrupts.check()
    status = resuming.gather()
    resuming.clean_up()
    try:
        with interrupts.allowed():
            summary = derive(store) if store.has("requests") else None
    except (KeyboardInterrupt, SquallError):
        again = f"squall analyze {quote(str(store.run_dir))}"
        if store.manifest.copied_to:
            again = sending_command(store)
        screen.step(f"sealed, without join and report: {again}")  # either makes them
        raise
    return RunResult(store.run_dir, summary, status)


def _already_whole(store: RunStore, screen: Screen, interrupts: Interrupts) -> RunResult:
    """Of a run that is sealed and has all that was sealed; what is derived from that is made again where it is not
    whole. Raises StoreError for a raw table that is not as it was sealed."""
    with interrupts.allowed():
        require_intact(store)
        changed = {line: TABLES[line.split("/")[1]] for line in store.verify()}
        if raw := [line for line, table in changed.items() if not table.is_derived]:
            raise StoreError(
                f"{store.where}: {raw[0]}: the rows that it had are gone, and nothing has them still"
            )
        screen.step(f"{store.run_dir} is sealed and whole")
        if store.has("requests") and (changed or not is_derived(store) or not _has_summary(store)):
            derive(store)
    summary = Summary.read(store) if store.has("requests") else None
    return RunResult(store.run_dir, summary, store.manifest.status)


def _has_summary(store: RunStore) -> bool:
    try:
        Summary.read(store)
    except StoreError:
        return False
    return True


class _Resuming:
    """`look`, `gather` once, `clean_up` where that went well."""

    def __init__(self, store: RunStore, screen: Screen) -> None:
        self._store = store
        self._screen = screen
        self._before = store.manifest
        self._unfinished = self._before.unfinished
        self._phases: Sequence[RunPhase] = phase_spans(self._before)
        self._folders: dict[str, Path] = {}
        self._copies: dict[str, Path] = {}
        self._elsewhere: dict[str, str] = {}
        self._losses: list[str] = []
        self._notes: list[str] = []
        self._ledger: Ledger | None = None
        self._kernels: KernelRecordingFacts | None = None  # gathered here

    def look(self) -> None:
        """Finds the folders here, and waits for the end of what still writes to them. Raises ClusterError."""
        nodes = {label: node.folder or "" for label, node in self._before.nodes.items()}
        folders = self._unfinished.folders if self._unfinished is not None else nodes
        self._folders = folders_of(self._store.run, self._store.run_dir, folders)
        for label, folder in self._folders.items():
            told = f"a process of the run still writes to {folder} of {label}: end it, or try again a little later"
            with sole_holder(folder, ClusterError(told), _ENDED_WITHIN_S):
                self._screen.step(f"found what {label} kept in {folder}")
            _refuse_ways_out(folder, self._servers())
        self._find_copies(folders)
        absent = [f"what {label} kept in {path} {_NOT_HERE}" for label, path in self._elsewhere.items()]
        has_here = self._folders or self._copies or (self._unfinished is None and self._store.has("requests"))
        if absent and not has_here:
            if self._unfinished is None and not self._phases:
                return  # nothing was recorded yet: an agent whose driver dies then removes its folder
            raise ClusterError(f"nothing to gather: {'; '.join(absent)}")
        self._losses += absent

    def _find_copies(self, named: Mapping[str, str]) -> None:
        """What came from nodes whose folders are not here, and which folders of `named` hold more than that."""
        found = copied_sites(self._store.run_dir)
        copies = {site: path for site, path in found.items() if site not in self._folders}
        whole = {site for site, path in copies.items() if is_whole(path)}
        # of a run that was sealed, what came of a copy that is not whole is in its tables
        self._copies = {
            site: path for site, path in copies.items() if site in whole or self._unfinished is None
        }
        for site in self._copies:
            self._screen.step(
                f"found what was fetched from {site}" + ("" if site in whole else ", not all of it")
            )
        left = {site: path for site, path in named.items() if site not in self._folders}
        self._elsewhere = {site: path for site, path in left.items() if site not in whole}

    def gather(self) -> str:
        """Brings all into the store and seals it; the verdict's status. Raises StoreError."""
        if not self._phases:
            self._store.reopen((), lambda _, rows: rows)
            self._store.seal(Verdict(status="ABORTED", reasons=(_NO_LOAD,)))
            self._screen.step(f"sealed: {_NO_LOAD}")
            return "ABORTED"
        self._require_clocks()
        plan = self._plan()
        files = [(label, file) for label in self._folders for file in self._files_of(label)]
        for site, path in self._copies.items():
            files += [(site, file) for file in FilesHere(path, label_of(site)).list()]
        tables = {"requests", *(file.table for _, file in files if file.table)}
        try:
            self._store.reopen(sorted(tables), self._kept)
            self._ingest(plan, files)
            return self._seal()
        except StoreError as error:
            return self._give_up(error)

    def _kept(self, table: str, rows: pa.Table) -> pa.Table:
        """Rows that lie in no folder here: of nodes that have none, and what the servers of other folders left."""
        sites = [*self._folders, *self._copies]
        labels = pa.array([site for site in sites if site == label_of(site)], pa.string())
        if "server" not in rows.column_names or table in FILLED:  # the observer's lie with the node
            return rows.filter(pc.invert(pc.is_in(_plain(rows, "node"), labels)))
        here = [name for name in self._servers() for one in self._folders.values() if (one / name).is_dir()]
        here += [name for site in self._copies for name in self._servers_at(site)]
        return rows.filter(pc.invert(pc.is_in(_plain(rows, "server"), pa.array(here, pa.string()))))

    def _require_clocks(self) -> None:
        """Raises ClusterError where nothing says when rows of a node were: the manifest is not as its run left it."""
        known = self._before
        labels = sorted({label_of(site) for site in (*self._folders, *self._copies)})
        starts = {label for label, node in known.nodes.items() if node.clock_track is not None}
        lacking = [label for label in labels if label not in starts & known.node_starts_ns.keys()]
        if known.start_ns is None or lacking:
            told = f"does not say how the clock of {', '.join(lacking) or 'the run'} goes"
            raise ClusterError(f"the manifest {told}: nothing can be gathered")

    def _plan(self) -> RunPlan | None:
        """As the run made it; None of Locust's load, of which the manifest says all: its file may be another by now.
        Raises ClusterError where it comes out otherwise."""
        if self._before.plan.load == "locust":
            return None
        scenario = scenario_of_run(self._before.scenario or {}, str(self._store.run_dir))
        n_servers = len(self._before.servers)
        try:
            plan = plan_run(scenario, scenario.servers or scenario.entries_for(n_servers))
        except ScenarioError as error:  # its text may show what stands in a file that the run names
            raise ClusterError(
                "the plan of this run cannot be made again: a file that its scenario names is not there, or is another;"
                " resume it where it ran"
            ) from error
        if plan.sha256() != self._before.plan.sha256:
            raise ClusterError(
                "the plan of this run cannot be made again: resume it with the squall that ran it"
            )
        return plan

    def _files_of(self, site: str) -> list[NodeFile]:
        """What lies in a folder; the servers' own records are made into spill files first."""
        folder, label = self._folders[site], label_of(site)
        spills = Spills(folder, label)
        for name, served in self._servers().items():
            if (folder / name).is_dir():
                labels = {
                    "run": self._store.run, "node": label, "server": name,
                    "model": served.model or "", "version": served.version or "",
                }  # fmt: skip
                self._take_server(folder / name, spills, labels)
        return FilesHere(folder, label).list()

    def _servers(self) -> Mapping[str, ServerFacts]:
        """By name; of a run that ended before its server was there, what is known of it: nothing."""
        return self._before.servers or {FIRST_SERVER: ServerFacts(node="")}

    def _servers_at(self, site: str) -> list[str]:
        """Those whose records came with the files of a site."""
        label, _, own = site.partition("/")
        of_node = [name for name, served in self._servers().items() if served.node == label]
        return [own] if own else [name for name in of_node if f"{label}/{name}" not in self._copies]

    def _take_server(self, folder: Path, spills: Spills, labels: dict[str, str]) -> None:
        if (folder / "batches").is_dir():
            self._losses += spills.write_batches(folder / "batches", labels)
        recording = KernelRecording(folder)
        from_ns = self._before.node_starts_ns.get(labels["node"], 0)
        losses, notes = BatchRecording(folder).spill(spills, labels, from_ns)
        self._losses, self._notes = self._losses + losses, self._notes + notes
        self._notes += recording.spill(spills, labels)
        if (kernels := recording.facts()).processes:
            self._kernels = kernels_together(self._kernels, kernels)
        if traces := traces_in(folder):
            self._notes += spills.write_traces(traces, labels)

    def _ingest(self, plan: RunPlan | None, files: Sequence[tuple[str, NodeFile]]) -> None:
        manifest = self._before
        clocks = {
            label: ClockTrack.from_knots(node.clock_track)
            for label, node in manifest.nodes.items()
            if node.clock_track is not None
        }
        start_ns, starts_ns = manifest.start_ns, manifest.node_starts_ns
        assert start_ns is not None, "phases are noted with it"
        if isinstance(plan, Plan):
            nodes = [worker.node for worker in manifest.workers]
            served = self._servers()
            names = {"run": self._store.run, "request_kind": next(iter(served.values())).model or ""}
            self._ledger = Ledger(plan, names, nodes, start_ns, tuple(served), model_names(manifest))
        n_rows = 0
        if self._store.has("requests"):  # of nodes whose folders are elsewhere
            stored = self._store.read("requests", ["request_id"])
            n_rows = len(stored)
            if self._ledger is not None:
                self._ledger.note_stored(stored)
        for label, file in sorted(files, key=lambda entry: entry[1].table != "requests"):
            here = FilesHere(self._folders.get(label) or self._copies[label], label)
            if not file.table and (label in self._folders or is_whole(self._copies[label])):
                self._store.write_file(f"nsys/{file.path.partition('/')[2]}", pieces_of(here, file))
            if not file.table:
                continue
            clock, kept = clocks[label_of(label)], self._counted(file.table)
            for data in ingest_file(self._store, here, file, clock, self._phases, self._losses, kept):
                if file.table == "requests":
                    n_rows += len(data)
                    if self._ledger is not None:
                        self._ledger.note(data, starts_ns[label_of(label)])
        if self._ledger is not None:
            self._losses += add_missing(self._store, self._ledger, [None] * len(manifest.workers))
        else:
            if plan is None and manifest.state == OPEN:
                self._losses.append(_NO_MASTER)
            known = self._store.manifest
            self._store.amend(replace(known, plan=replace(known.plan, n_arrivals=n_rows)))
        self._keep_log()
        self._store.flush()

    def _counted(self, table: str) -> Callable[[pa.Table], pa.Table]:
        if table == "requests" and self._ledger is not None:
            return self._ledger.planned
        return lambda data: data

    def _keep_log(self) -> None:
        for folder in self._folders.values():
            for name in self._servers():
                self._keep_text(f"logs/{name}.log", folder / name / "triton.log", folder)
            for log in sorted((folder / "spill").glob("locust-*.log")):
                self._keep_text(f"logs/{log.name}", log, folder)

    def _keep_text(self, name: str, log: Path, folder: Path) -> None:
        """`log` without names of this node's folders; its end, where it is too large to be held."""
        try:
            content, n_left_out = end_of_log(log)
        except FileNotFoundError:
            return
        except OSError as error:
            self._notes.append(f"{name} cannot be read: {error.strerror}")
            return
        if n_left_out:
            self._notes.append(f"{name} has the end of a log: {n_left_out} bytes before that are left out")
        self._store.write_text(name, without_own_folders(content, folder).decode(errors="replace"))

    def _seal(self) -> str:
        known = self._store.manifest
        noted = [one for one in known.losses if not one.endswith(_NOT_HERE)]
        self._store.amend(
            replace(
                known,
                losses=(*noted, *self._losses),
                notes=(*known.notes, *self._notes, *told_by_watches(self._store.run_dir), _how(self._before)),
                kernels=self._kernels or self._before.kernels,
                driver_ended_ns=self._driver_ended_ns(),
            )
        )
        if notes := notes_of_ties(self._store):
            known = self._store.manifest
            self._store.amend(replace(known, notes=(*known.notes, *notes)))
        if self._is_aborted:
            verdict = Verdict(status="ABORTED", reasons=self._before.reasons)
        else:
            verdict = judge_run(self._store)
        unfinished = Unfinished(
            folders=self._elsewhere,
            why=dict.fromkeys(self._elsewhere, "not on the machine that resumed it"),
            is_aborted=self._is_aborted,
        )
        self._store.seal(verdict, unfinished if self._elsewhere else None)
        return self._store.manifest.status

    def _driver_ended_ns(self) -> int | None:
        """The last send of a run whose driver was killed while requests were still due; None of any other."""
        before = self._before
        is_ended = before.decided is not None or any(LOAD_STOPS in note for note in before.notes)
        if before.state != OPEN or is_ended or not self._store.has("requests"):
            return before.driver_ended_ns
        sent = self._store.read("requests", ["sent_ns", "outcome", "detail"])
        last_ns = pc.max(sent.column("sent_ns")).as_py() or self._phases[0].start_ns
        if before.plan.load == "open":  # other arrivals are unsent by a limit of the scenario
            is_unsent = pc.equal(_plain(sent, "outcome"), "unsent")
            is_cut = pc.any(pc.and_(is_unsent, pc.ends_with(_plain(sent, "detail"), BEFORE_ITS_TURN))).as_py()
        else:  # users send until the load ends: more than the time to a reply before that they were ended
            load_end_ns = max(one.end_ns for one in self._phases if one.kind != "drain")
            is_cut = last_ns < load_end_ns - _LAST_REPLIES_NS
        return last_ns if is_cut else None

    @property
    def _is_aborted(self) -> bool:
        """Whether the run was aborted for another reason than rows that could not be fetched."""
        return self._unfinished is not None and self._unfinished.is_aborted

    def _give_up(self, error: StoreError) -> str:
        """Sealed as unfinished again. Raises StoreError."""
        folders = {label: str(folder) for label, folder in self._folders.items()}
        kept = ", ".join(f"{folder} of {label}" for label, folder in folders.items())
        again = f"squall resume {quote(str(self._store.run_dir))}"
        told = f"{error}; the records are kept in {kept}: {again} finishes the run"
        unfinished = Unfinished(
            folders=folders, why=dict.fromkeys(folders, str(error)), is_aborted=self._is_aborted
        )
        reasons = self._before.reasons if self._is_aborted else (told,)
        with suppress(
            SquallError
        ):  # a disk without any room: the run stays open, and can be resumed all the same
            if not self._store.is_sealed:
                verdict = Verdict(status="ABORTED", reasons=reasons)
                self._store.seal(verdict, unfinished, is_broken_off=True)
        raise StoreError(told) from error

    def clean_up(self) -> None:
        """Removes the folders, and the copies of a run that is whole: it has all that was in them."""
        if self._store.manifest.unfinished is None:
            remove_copies(self._store.run_dir)
        for folder in self._folders.values():
            for name in self._servers():
                for recording in (BatchRecording(folder / name), KernelRecording(folder / name)):
                    recording.close(keeps_files=False)
            shutil.rmtree(folder, ignore_errors=True)


def _refuse_ways_out(folder: Path, servers: Iterable[str]) -> None:
    """Raises StoreError where something that is read of a scratch folder is no plain file or folder. Of all else in a
    server's, its temporary folder, sockets and links are its own business."""
    for own in (folder / name for name in servers):
        _refuse_way_out(own)
        for path in (*(own / name for name in _READ_OF_SERVER), *own.glob(f"{TRACE}*")):
            _refuse_way_out(path)
            refuse_ways_out(path)
    for path in (folder / "spill", folder / "reports"):
        _refuse_way_out(path)
        refuse_ways_out(path)


def _refuse_way_out(path: Path) -> None:
    if path.is_symlink() or (path.exists() and not (path.is_dir() or path.is_file())):
        raise StoreError(f"{path} is no file or folder of squall's: remove it")


def _plain(rows: pa.Table, column: str) -> pa.ChunkedArray:
    return rows.column(column).cast(pa.string())


def _how(before: Manifest) -> str:
    """Why it had to be resumed."""
    if before.state == OPEN:
        return (
            "the run's driver ended before it had collected the records: they were gathered by squall resume"
        )
    return "the records were gathered by squall resume"
