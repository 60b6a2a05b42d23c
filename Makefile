# One command does what it says, on a fresh machine too. `make help` lists them.
SHELL := /bin/bash
PY := .venv/bin/python
STAMP := .venv/.ready
DEMO := .venv/.demo

# Hundreds of programs start in tests and benchmarks: each finds its modules compiled, and none begins
# threads for matrices that it does not have.
unexport PYTHONDONTWRITEBYTECODE
export OPENBLAS_NUM_THREADS := 1

.DEFAULT_GOAL := help
.PHONY: help setup packages demo-packages test campaigns check format docs dist demo demo-departures demo-kafka bench bench-against bench-peers fuzz soak simulate mutants survive crash machines faults attack clean

help: ## list the commands
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(STAMP) packages .brokers/kafka .brokers/spark .brokers/spark.jsa .brokers/openapi .brokers/tasks .brokers/go .brokers/asynq bench/bullmq/node_modules .brokers/vega .brokers/kombu .brokers/django ## .venv in the checkout, with everything

$(STAMP): pyproject.toml
	@echo "setup: Python packages into .venv, some minutes; then Kafka's jars and what tests run against"
	python3 -m venv .venv
	$(PY) -m pip install --quiet --upgrade pip
	$(PY) -m pip install --quiet --editable '.[cli,server,client,schedules,arrow,worker,redis,celery,django,kafka,rabbitmq,outbox,spark,testing,demo,examples,bench]' --group dev
	@touch $@

# A newcomer's first command installs only what it runs.
$(DEMO): pyproject.toml
	@[ -d .venv ] || { echo "setup: Python packages into .venv, about a minute"; python3 -m venv .venv; }
	@[ $(STAMP) -nt $< ] || $(PY) -m pip install --quiet --editable '.[cli,server,client,schedules,redis,spark,demo]'
	@touch $@

demo-packages:
	@.ci/packages $$(command -v java >/dev/null || echo openjdk-17-jre-headless) $(if $(filter redis,$(STORE)),redis-server)

packages: ## Debian packages that tests and benchmarks run against
	@.ci/packages redis-server beanstalkd rabbitmq-server postgresql nginx-light chromium curl openssl faketime \
		$$(command -v java >/dev/null || echo openjdk-17-jre-headless) \
		$$(command -v mvn >/dev/null || echo maven) \
		$$(command -v node >/dev/null || echo nodejs npm) $$(command -v go >/dev/null || echo golang-go)

.brokers/kafka: bench/kafka/pom.xml
.brokers/spark: bench/kafka/spark/pom.xml
.brokers/kafka .brokers/spark: | packages
	@echo "setup: $@, from Maven"
	@rm -rf $@
	@mvn -q -B -f $< dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/$@
	@touch $@

# Java programs that tests start load most of what they need at once.
.brokers/spark.jsa: .brokers/kafka $(STAMP)
	@$(PY) -m tools.class_archives

# Clients that tests run; Go keeps what it has built, and builds it there in a second.
.brokers/go: tests/beanstalk/strangers/go/main.go tests/beanstalk/strangers/go/go.sum
.brokers/asynq: tests/takeover/asynq/main.go tests/takeover/asynq/go.sum
.brokers/go .brokers/asynq: | packages
	@cd $(<D) && GOFLAGS=-mod=readonly GOTOOLCHAIN=local go build -o $(CURDIR)/$@ .

# It wants other versions of packages than Dwell does.
.brokers/openapi: Makefile
	@rm -rf $@
	@python3 -m venv $@
	@$@/bin/pip install --quiet "openapi-python-client>=0.29,<0.30"
	@touch $@

# The tests that kombu has for all transports are only in its source.
.brokers/kombu: $(STAMP)
	@rm -rf $@ && mkdir $@
	@$(PY) -m pip download --quiet --no-deps --no-binary :all: --dest $@ \
		"kombu==$$($(PY) -c 'import kombu; print(kombu.__version__)')"
	@tar -xzf $@/kombu-*.tar.gz -C $@ --strip-components 1

# Django 6 needs a newer Python than Dwell does. Its own tests of tasks are only in its source.
.brokers/django: Makefile .ci/newer-python
	@rm -rf $@ && mkdir $@
	@python=$$(.ci/newer-python); if [ -z "$$python" ]; then echo "setup: no Python 3.12, so tests with Django 6 are skipped"; else \
		$$python -m venv $@ && $@/bin/pip install --quiet "django>=6.1,<6.2" "msgspec>=0.20,<1" "numpy>=2.1,<3" "aiohttp>=3.13,<4" && \
		$@/bin/pip download --quiet --no-deps --no-binary :all: --dest $@ \
			"django==$$($@/bin/python -c 'import django; print(django.__version__)')" && \
		tar -xzf $@/django-*.tar.gz -C $@ --strip-components 1 --wildcards '*/tests/tasks'; fi

# Peers of a benchmark, of which some want another client of Redis than Dwell does.
.brokers/tasks: Makefile
	@rm -rf $@
	@python3 -m venv $@
	@$@/bin/pip install --quiet "dramatiq[redis]>=2.2,<3" "rq>=3,<4" "arq>=0.28,<0.29" \
		"taskiq>=0.11,<0.12" "taskiq-redis>=1.0.9,<1.1" "celery[redis]>=5.6,<5.7"

# Those of Spark share one session, so they are one program beside the others, which wait more often:
# three workers more than there are cores. Short programs in Java end sooner when little is compiled. What
# failed, in either, is told once more at the end, where it is looked for.
WORKERS := $(shell expr $$(nproc) + 3)
JAVA := -Xlog:disable -XX:TieredStopAtLevel=1 -XX:+UseSerialGC \
	-XX:SharedArchiveFile=$(CURDIR)/.brokers/spark.jsa
define pytest
@logs=$$(mktemp -d); JDK_JAVA_OPTIONS="$(JAVA)" $(PY) -m pytest tests/spark -m "$(1)" >$$logs/spark 2>&1 & spark=$$!; \
$(PY) -m pytest --ignore tests/spark -m "$(1)" -n $(WORKERS) --dist worksteal 2>&1 | tee $$logs/rest; \
rest=$${PIPESTATUS[0]}; wait $$spark; spark=$$?; cat $$logs/spark; \
grep -hE '^(FAILED|ERROR|E  )' $$logs/rest $$logs/spark; rm -r $$logs; exit $$((rest + spark))
endef

test: setup ## all tests but the campaigns
	$(call pytest,not campaign)

campaigns: setup ## kills, faults and searches: the tests that take minutes
	$(call pytest,campaign)

check: setup ## format, lint, types, plain English
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	$(PY) -m tools.prose

format: setup ## write the format that check wants
	$(PY) -m ruff format .
	$(PY) -m ruff check --fix .

docs: setup ## the documentation as a site with search, in site/
	$(PY) -m tools.docs_site

dist: setup ## wheel and sdist, in dist/
	rm -rf dist
	$(PY) -m build --quiet --no-isolation

STORE := embedded
demo: $(DEMO) demo-packages ## a year of real flights through Spark, the server killed once, ending in an audit (STORE=redis)
	$(PY) -m examples.flights --out report --store $(STORE)

demo-kafka: setup ## the same with Kafka at both ends, a relay killed once
	$(PY) -m examples.flights_kafka --out report

# Rows of the second example; the package is a data set.
.brokers/vega: Makefile
	@rm -rf $@ && mkdir -p $@
	@cd $@ && tar xzf $$(npm pack --silent vega-datasets@3.2.1) --strip-components=2 package/data/flights-3m.parquet
	@rm $@/*.tgz

demo-departures: setup ## three million rows with zones, nulls and duplicates through Spark, put twice, the server killed once
	$(PY) -m examples.departures --out report

bench: setup ## all benchmarks, small
	$(PY) -m bench all --small

# Tests and a benchmark run against it.
bench/bullmq/node_modules: bench/bullmq/package-lock.json $(STAMP) | packages
	-@$(PY) -c "from bench.bullmq import install; install()"
	@touch $@

# Only this benchmark needs them, so that setup leaves them out. A peer that cannot be installed is
# named in its place, and the others go on.
.brokers/peers/go: $(wildcard bench/peers/go/*) | packages
	@mkdir -p $(@D)
	-@cd bench/peers/go && GOFLAGS=-mod=readonly GOTOOLCHAIN=local go build -o $(CURDIR)/$@ .

.brokers/peers/python: Makefile
	@rm -rf $@ && mkdir -p $(@D)
	@python3 -m venv $@
	-@$@/bin/pip install --quiet "rq>=3,<4" "celery[redis]>=5.7,<5.8" "huey[redis]>=3.5,<4" \
		"procrastinate>=3.10,<4" "awa-pg>=0.6.9,<0.7" "psycopg[binary]>=3.2,<4"

bench-peers: setup .brokers/peers/go .brokers/peers/python bench/bullmq/node_modules ## what others would pick, measured in turn with Dwell, under an hour; makes docs/benchmarks-peers.md
	$(PY) -m bench.peers --out docs/benchmarks/peers.json
	$(PY) -m tools.benchmarks_page

BENCH := lifecycle
bench-against: setup ## BENCH="lifecycle --batch 1" on this revision and on REV=HEAD~1, in turn
	$(PY) -m bench.against $(or $(REV),HEAD~1) $(BENCH)

fuzz: setup ## the fuzz runs: a million inputs for each codec, half an hour
	DWELL_FUZZ=1000000 $(PY) -m pytest -q --timeout 0 -k fuzz tests/beanstalk tests/http

soak: setup ## 200 connections of mixed load for 10 minutes; the books must balance
	$(PY) -m bench.soak --minutes 10 --connections 200

SEEDS := 1000
FIRST := 0
simulate: setup ## the simulation: SEEDS=1000 runs, each from one seed, from FIRST=0 on
	$(PY) -m tools.simulation --seeds $(SEEDS) --first $(FIRST)
	$(PY) -m tools.simulation --seeds $(SEEDS) --first $(FIRST) --what timetables
	$(PY) -m tools.simulation --seeds $(SEEDS) --first $(FIRST) --what relays

mutants: setup ## bring each known defect back, and see the tests catch it
	$(PY) -m tools.mutants

RUNS := 1
survive: setup ## real failures for ten minutes, times RUNS=1, into docs/reliability.md; RUNS=small: a minute, no page
	$(PY) -m tools.survive $(if $(filter small,$(RUNS)),--small,--runs $(RUNS))

crash: setup ## the crash campaign, long: 2,000 kills
	DWELL_KILLS=2000 $(PY) -m pytest tests/crash -q

machines: setup ## the searches beside the model, twenty times as long
	DWELL_RUNS=20 $(PY) -m pytest -q --timeout 0 -n $(WORKERS) -k "machine or Machine" tests/store tests/redis

faults: setup ## every fault and every end at every call of the embedded store, of which make campaigns draws some
	DWELL_FAULTS=all $(PY) -m pytest -q --timeout 0 tests/store/test_faults.py

attack: setup ## every attack that was ever found, against a served store (STORE=redis); 1 when one gets through
	$(PY) -m tools.attack --store $(STORE)

clean: ## remove what setup and the commands made
	rm -rf .venv .brokers report build dist bench/bullmq/node_modules
