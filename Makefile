# Everything from a fresh clone: `make demo` and `make test`. uv is used where it is there, python3 -m venv and pip else.
# python3 where that is new enough, else the newest python3.x that is; PYTHON=… names another.
NEW_ENOUGH := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
KNOWN := python3 python3.13 python3.12 python3.11
PYTHON ?= $(or $(firstword $(foreach one,$(KNOWN),$(shell $(one) $(NEW_ENOUGH) >/dev/null 2>&1 && echo $(one)))),python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Unit tests fill the time in which real runs wait, and take little of theirs.
BEHIND := nice -n 10
# They are many and short: two processes by folder, about as long, cost less than workers that report each test.
JUDGED := tests/unit/analysis/findings tests/unit/analysis/verdict
ANALYSIS := tests/unit/analysis $(JUDGED:%=--ignore=%)
UNIT := tests/contract $(JUDGED) $(filter-out %/analysis %/conftest.py,$(wildcard tests/unit/[a-z]*))
REAL := tests/golden tests/integration
BESIDE := --dist worksteal $(REAL)
SINGLE := tests/integration

# $(call part,NAME,ARGUMENTS,BEFORE): a part of the suite. A test that fails fails it; nothing is run again to pass.
part = $(3) $(BIN)/pytest -o cache_dir=build/tests/$(1) --durations=10 $(2)

.PHONY: demo test test-skipped lane-pure lane-analysis lane-single lane-real test-slow lane-slow-pure lane-slow-single lane-slow-real test-long \
	lane-long-pure lane-long-single lane-long-real test-all asan bench lint \
	types docs hashes clean

demo: $(READY)
	$(BIN)/squall demo

# Bytecode is kept, whatever the shell says: the tests start hundreds of Pythons, and each would compile squall anew.
test test-slow test-long test-all: export PYTHONDONTWRITEBYTECODE =

# One thread of BLAS, DuckDB and Arrow in each process: the others of the suite have the cores, threads that wait for one another
# spin, and a query over a small table costs a third less without them.
test test-slow test-long test-all: export OPENBLAS_NUM_THREADS = 1
test test-slow test-long test-all: export OMP_NUM_THREADS = 1

# Lanes at once, then what is measured, alone and one by one. Real runs mostly wait, so that there are more of them at once than
# cores, those of the engine among them: where one waits out a process that was stopped, the others have the cores; a fourth would
# starve servers for seconds, and end no sooner than the unit tests do. What starts nsys, which may fail beside another of its kind,
# has a lane in which it goes one by one. The lanes of the unit tests and of nsys print at their end.
test: export SQUALL_SKIPPED = build/skipped
test: lint
	@mkdir -p build && : >build/skipped
	@failed=0; \
	$(MAKE) --no-print-directory -j 4 --keep-going lane-pure lane-analysis lane-single lane-real || failed=1; \
	$(call part,serial,-m "not slow and serial" $(REAL)) || failed=1; \
	exit $$failed

# The tests that the last `make test` skipped, on a host that has more of what they need by now. 5: none is of that kind.
test-skipped: export PYTHONDONTWRITEBYTECODE =
test-skipped: export OPENBLAS_NUM_THREADS = 1
test-skipped: export OMP_NUM_THREADS = 1
test-skipped: $(READY)
	@test -s build/skipped || { echo "make: the last make test skipped nothing, or there was none" >&2; exit 1; }
	@failed=0; \
	{ $(call part,skipped,-n 2 --dist worksteal -m "not serial and not single" @build/skipped); } || test $$? = 5 || failed=1; \
	{ $(call part,skipped-single,-m "serial or single" @build/skipped); } || test $$? = 5 || failed=1; \
	exit $$failed

# $(call aside,NAME,COMMANDS): commands whose output comes at their end.
aside = @mkdir -p build; { $(2); } >build/$(1).log 2>&1; ended=$$?; cat build/$(1).log; exit $$ended

lane-pure: $(READY)
	$(call aside,unit,$(call part,unit,-q -m "not slow" $(UNIT),$(BEHIND)))

lane-analysis: $(READY)
	$(call aside,analysis,$(call part,analysis,-q -m "not slow" $(ANALYSIS),$(BEHIND)))

lane-single: $(READY)
	$(call aside,single,$(call part,single,-m "not slow and single" $(SINGLE)))

lane-real: $(READY)
	$(call part,beside,-n 3 -m "not slow and not serial and not single" $(BESIDE))

# What `make test` leaves out, in the same way; and property tests with all of their examples.
test-slow: $(READY)
	@failed=0; \
	$(MAKE) --no-print-directory -j 3 --keep-going lane-slow-pure lane-slow-single lane-slow-real || failed=1; \
	$(call part,slow-serial,-m "slow and serial and not long" $(REAL)) || failed=1; \
	exit $$failed

lane-slow-pure: $(READY)
	$(call aside,slow-unit,$(call part,slow-unit,-m "(slow or hypothesis) and not long and not single" --hypothesis-profile=thorough -n 2 --dist worksteal \
	  tests/contract tests/unit,$(BEHIND)))

lane-slow-single: $(READY)
	$(call aside,slow-single,$(call part,slow-single,-m "slow and single and not long" tests/contract $(SINGLE)))

lane-slow-real: $(READY)
	$(call part,slow-beside,-n 3 -m "slow and not serial and not single and not long" $(BESIDE))

test-all: export SQUALL_LONGEST_FAULT_S ?= 120
test-all: test types test-slow test-long asan

# Statistics over hundreds of simulated decisions and queues; long runs of full queues, faults on several hosts, and what is
# fetched from them; what a slow test has of further cases. In the same way.
test-long: $(READY)
	@failed=0; \
	$(MAKE) --no-print-directory -j 3 --keep-going lane-long-pure lane-long-single lane-long-real || failed=1; \
	$(call part,long-serial,-m "long and serial" $(REAL)) || failed=1; \
	exit $$failed

lane-long-pure: $(READY)
	$(call aside,long-unit,$(call part,long-unit,-m long -n 2 --dist worksteal tests/unit,$(BEHIND)))

lane-long-single: $(READY)
	$(call aside,long-single,$(call part,long-single,-m "long and single" $(SINGLE)))

lane-long-real: $(READY)
	$(call part,long-beside,-n 3 -m "long and not serial and not single" $(BESIDE))

# The C lane and what leads it everywhere, under ASan, LSan and UBSan; in one line that it is left out where there are none.
asan: $(READY)
	$(BIN)/python -m tests.sanitize

bench: $(READY)
	$(BIN)/python -m tests.bench.engine
	$(BIN)/python -m tests.bench.h2load
	$(BIN)/python -m tests.bench.capacity
	$(BIN)/python -m tests.bench.locust_cost
	$(BIN)/python -m tests.bench.triton_user

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# The root of the repository is the package `squall`, whatever the folder is called that it was cloned into.
types: $(READY)
	@mkdir -p build/types && ln -sfn ../.. build/types/squall
	$(BIN)/mypy

docs: $(READY)
	@mkdir -p build/docs
	$(BIN)/python -m squall.analysis.storage.schema >build/docs/schema.md
	$(BIN)/python -m squall.analysis.report.keys >build/docs/summary.md
	$(BIN)/python -m squall.analysis.findings.tried >build/docs/rules.md
	$(BIN)/python -m tests.planted_faults.page >build/docs/checks.md
	$(BIN)/python -m docs.make.pictures
	$(BIN)/python -m docs.make.experiments

# The wheels of constraints.txt as their index has them; asks it.
hashes: $(READY)
	@mkdir -p build
	$(BIN)/python -m docs.make.hashes >build/requirements.txt
	@mv build/requirements.txt .

# By hashes, and squall itself without asking any index: not even what builds it is another than was tested.
$(READY): pyproject.toml setup.py requirements.txt $(wildcard actors/native/* actors/inject/*.[ch])
	@if [ -x $(BIN)/python ] && ! $(BIN)/python $(NEW_ENOUGH); then \
	  echo "make: $(VENV) is of a Python below 3.11, it is made anew" >&2; rm -rf $(VENV); \
	fi
	@[ -x $(BIN)/python ] || $(PYTHON) $(NEW_ENOUGH) || { \
	  echo "make: squall needs Python 3.11 or later, and $(PYTHON) is $$($(PYTHON) --version 2>&1 || true);" \
	    "install one (Debian: python3.11 python3.11-venv), or name it: make PYTHON=python3.12" >&2; exit 1; \
	}
	@[ -x $(BIN)/python ] || is_new=1; \
	if command -v uv >/dev/null 2>&1; then \
	  { [ -z "$$is_new" ] || uv venv --quiet --python $(PYTHON) $(VENV); } && \
	  set -- uv pip install --quiet --python $(BIN)/python; \
	else \
	  { [ -z "$$is_new" ] || $(PYTHON) -m venv $(VENV); } && \
	  set -- $(BIN)/python -m pip install --quiet --disable-pip-version-check; \
	fi && \
	"$$@" --require-hashes --requirement requirements.txt && \
	"$$@" --no-deps --no-build-isolation --editable . || { [ -z "$$is_new" ] || rm -rf $(VENV); exit 1; }
	@touch $@

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
