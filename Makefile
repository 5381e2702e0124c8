# make verify sets up and runs the main job. make test, make quick (one case of each fast test), make nightly (all tests)
# and make lint check the project; make docs builds its documents into build/site.
PYTHON ?= python3
# With your own build of Triton, as on ROCm: make verify EXTRAS=cli,html CONSTRAINTS=/dev/null
EXTRAS ?= cli,html,triton
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
# One thread a worker: with more, on as many cores as workers, threads of torch spend the time in waiting for each other.
# Three workers for two cores: a part of the time passes in waiting, for a process that starts or a time limit. The fast
# tests do not wait.
# Python keeps what it compiles, also where a container says PYTHONDONTWRITEBYTECODE: the tests start many processes.
TESTS := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/pytest --dist worksteal
STAMP := .venv/.installed

.PHONY: verify test nightly quick lint format docs bounds mutants bench clean

verify: $(STAMP)
	$(BIN)/verify-norm --kernel layernorm_bwd

test: $(STAMP)
	$(TESTS) -n 3 -m "not nightly"

nightly: $(STAMP)
	$(TESTS) -n 3

quick: $(STAMP)
	$(TESTS) -n 2 -m "not slow" --cases 1

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file docs/site/mkdocs.yml

bounds: $(STAMP)
	$(BIN)/python benchmarks/bounds.py
	$(BIN)/python benchmarks/chains.py
	$(BIN)/python benchmarks/quantized_chains.py

mutants: $(STAMP)
	$(BIN)/python benchmarks/mutation.py $(PACKAGES)

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv build *.egg-info

# A strict editable install links each file, so that mypy and import-linter see the packages under their import names;
# it has to be made again when a file comes or goes, which changes the time of its folder.
$(STAMP): pyproject.toml $(CONSTRAINTS) $(shell find verify/. reference/. kernels/. -type d -not -name __pycache__)
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --group test --group lint --group docs \
		--editable '.[$(EXTRAS)]' --config-settings editable_mode=strict
	touch $@
