# make verify: set up and run the main job. make test, make lint: set up and check the project itself.
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: verify test lint format bounds bench clean

verify: $(STAMP)
	$(BIN)/verify-norm --kernel layernorm_bwd

test: $(STAMP)
	$(BIN)/pytest -n 2

lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bounds: $(STAMP)
	$(BIN)/python benchmarks/bounds.py

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv build *.egg-info

# A strict editable install links each file, so that mypy and import-linter see the packages under their import names;
# it has to be made again when a file comes or goes, which changes the time of its folder.
$(STAMP): pyproject.toml $(CONSTRAINTS) verify/. verify/auditing verify/certify verify/checks verify/commands verify/fingerprint verify/policies verify/report verify/report/html reference kernels kernels/cuda kernels/zoo
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --constraint $(CONSTRAINTS) --group test --group lint \
		--editable . --config-settings editable_mode=strict
	touch $@
