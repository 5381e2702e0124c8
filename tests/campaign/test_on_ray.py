"""A campaign on Ray does each unit once, whatever is killed, and its store is that of a run without faults."""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path

import campaigns
import light_worker
import pytest
from campaigns import PLAN, contents

from verify_norm.campaign import actor, local, on_ray, run
from verify_norm.campaign import cluster as joined
from verify_norm.campaign.model import LostError, Unit
from verify_norm.campaign.plan import checked
from verify_norm.campaign.store import Store
from verify_norm.core.errors import UsageError

pytest.importorskip("ray")
DTYPES = ("float32", "bfloat16")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


SMALL = {"object_store_memory": 80_000_000}


def begun(**head):
    """A Ray cluster on this machine, whose workers know how to work lightly."""
    from ray import cloudpickle
    from ray.cluster_utils import Cluster

    cloudpickle.register_pickle_by_value(light_worker)  # the folder of this module is on no worker's path
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Ray leaves two files of its client's server open
        return Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **SMALL, **head})


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of two nodes with two cores each; the head has none."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        port = free_port()
        made = begun(num_cpus=0, ray_client_server_port=port)
        made.client = f"ray://127.0.0.1:{port}"
        made.nodes = [made.add_node(num_cpus=2, **SMALL) for _ in range(2)]
        yield made
        made.shutdown()


def units(folder, hows):
    """A unit for each of these: what a light worker does with it. The reports are in the folder."""
    for dtype in DTYPES:
        (folder / dtype).write_bytes(pickle.dumps(campaigns.report(dtype)))
    return tuple(
        Unit(f"{n:04}", n, f"{how}:{folder}", "layernorm_fwd", "", "", "", DTYPES[n % 2], n, 0, 10, "")
        for n, how in enumerate(hows)
    )


def stored(path):
    with Store.reading(str(path)) as store:
        return contents(store)


def without_faults(folder, found, monkeypatch):
    """What the store of a local run says, in which no process ends."""
    for unit in found:
        (folder / f"{unit.id}.met").touch()
    monkeypatch.setattr(local.worker, "examine", light_worker.reported)
    run.run(PLAN, found, str(folder / "local"), local.Local(checked({"kernels": ["k"], "device": "cpu"}), 1))
    return stored(folder / "local")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_worker_is_killed_and_a_node_is_lost(tmp_path, cluster, monkeypatch):
    found = units(tmp_path, [*["meets"] * 4, "once", *["fine"] * 19])
    executor = on_ray.OnRay(PLAN, cluster.address, examine=light_worker.reported)
    assert executor.places == {"": 4}
    met = []

    def progress(store):
        met.append(len(store.pending()))
        if len(met) == 8:
            cluster.remove_node(cluster.nodes.pop(), allow_graceful=False)

    run.run(PLAN, found, str(tmp_path / "s"), executor, progress=progress)
    assert met == list(range(23, -1, -1)), "each unit is entered once"
    with Store.reading(str(tmp_path / "s")) as store:
        assert store.query("SELECT unit, ended FROM losses") == [("0004", "it ended its process")]
        assert len(store.query("SELECT DISTINCT worker FROM outcomes")) == 4
    assert stored(tmp_path / "s") == without_faults(tmp_path, found, monkeypatch)


DRIVER = """
import sys
import light_worker, test_driver_units
from ray import cloudpickle
from verify_norm.campaign import on_ray, run

cloudpickle.register_pickle_by_value(light_worker)
units, plan = test_driver_units.units, test_driver_units.plan
run.run(plan, units, sys.argv[1], on_ray.OnRay(plan, sys.argv[2], examine=light_worker.reported))
"""
UNITS = """
import pickle
from pathlib import Path

plan, units = pickle.loads((Path(__file__).parent / "units").read_bytes())
"""


@pytest.mark.nightly
@pytest.mark.slow
def test_a_machine_outside_of_the_cluster_is_the_driver(tmp_path, cluster, monkeypatch):
    found = units(tmp_path, ["fine", "once"])
    run.run(PLAN, found, str(tmp_path / "s"), on_ray.OnRay(PLAN, cluster.client, 1, light_worker.reported))
    assert stored(tmp_path / "s") == without_faults(tmp_path, found, monkeypatch)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_driver_is_killed_and_started_again(tmp_path, cluster, monkeypatch):
    found = units(tmp_path, ["fine"] * 24)
    (tmp_path / "units").write_bytes(pickle.dumps((PLAN, found)))
    (tmp_path / "test_driver_units.py").write_text(UNITS)
    (tmp_path / "driver.py").write_text(DRIVER)
    path = os.pathsep.join(filter(None, sys.path))
    given = {"env": os.environ | {"PYTHONPATH": path}, "cwd": tmp_path, "stderr": subprocess.DEVNULL}
    for moment in (1, 9, 17, None):
        command = [sys.executable, "driver.py", "s", cluster.address]
        with subprocess.Popen(command, **given) as driver:
            while driver.poll() is None and moment is not None and done(tmp_path / "s") < moment:
                time.sleep(0.03)
            if moment is not None:
                driver.send_signal(signal.SIGKILL)
        assert (driver.returncode == 0) == (moment is None)
        assert done(tmp_path / "s") >= (moment or 24)
    assert stored(tmp_path / "s") == without_faults(tmp_path, found, monkeypatch)


def done(path):
    """How many outcomes a store has, also while a campaign writes it."""
    try:
        with Store.reading(str(path)) as store:
            return store.query("SELECT count(*) FROM outcomes")[0][0]
    except UsageError:  # not there yet
        return 0


@pytest.mark.nightly
@pytest.mark.slow
def test_a_unit_that_ends_three_workers_is_a_finding_and_one_that_hangs_too(tmp_path, cluster):
    found = units(tmp_path, ["killed", "hangs", "fine"])
    plan = PLAN.model_copy()
    executor = on_ray.OnRay(plan, cluster.address, jobs=2, examine=light_worker.reported)
    executor._limit = 1.0
    run.run(plan, found, str(tmp_path / "s"), executor)
    with Store.reading(str(tmp_path / "s")) as store:
        said = dict(store.query("SELECT unit, message FROM findings"))
    three = "the unit has ended the process of 3 workers; the last time it "
    assert said == {"0000": f"{three}ended its process", "0001": f"{three}was not done after 1 s, and was ended"}


@pytest.mark.nightly
@pytest.mark.slow
def test_each_actor_sees_one_gpu_of_its_accelerator(tmp_path, cluster):
    """The GPUs are names: nothing runs on them."""
    kinds = {"H100": 2, "A100": 1}
    hosts = [
        cluster.add_node(num_cpus=0, num_gpus=number, resources={f"accelerator_type:{kind}": 1}, **SMALL)
        for kind, number in kinds.items()
    ]
    (one,) = units(tmp_path, ["3"])
    several = tuple(
        replace(one, id=f"{kind} {n}", number=n, accelerator=kind) for kind in kinds for n in range(2 * kinds[kind])
    )
    plan = checked({"kernels": ["k"], "device": "cuda", "accelerators": ",".join(kinds)})
    executor = on_ray.OnRay(plan, cluster.address, examine=light_worker.seen)
    assert executor.places == kinds
    run.run(plan, several, str(tmp_path / "s"), executor)
    for host in hosts:
        cluster.remove_node(host)
    with Store.reading(str(tmp_path / "s")) as store:
        met = store.query(
            "SELECT DISTINCT accelerator, problem, worker FROM outcomes JOIN units ON unit = id ORDER BY 1, 2"
        )
    assert [(kind, gpu, worker.split()[1]) for kind, gpu, worker in met] == [
        ("A100", "0", "cuda:0"),
        ("H100", "0", "cuda:0"),
        ("H100", "1", "cuda:1"),
    ]


@pytest.mark.nightly
@pytest.mark.slow
def test_a_lost_head_ends_the_campaign_with_one_line_and_what_is_done_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setattr("verify_norm.campaign.cluster.LOST", 1.0)
    monkeypatch.setattr("verify_norm.campaign.cluster.LOOKING", 0.1)
    found = units(tmp_path, [*["fine"] * 4, "hangs", "hangs"])
    made = begun(num_cpus=2)
    executor = on_ray.OnRay(PLAN, made.address, examine=light_worker.reported)

    def progress(store):
        if len(store.pending()) == 2:
            made.head_node.kill_all_processes(check_alive=False, allow_graceful=False)

    with pytest.raises(LostError, match=r"--on ray: the head at .* has not answered for 1 s: ") as error:
        run.run(PLAN, found, str(tmp_path / "s"), executor, progress=progress)
    assert "\n" not in str(error.value)
    with Store.reading(str(tmp_path / "s")) as store:
        assert [unit.id for unit in store.pending()] == ["0004", "0005"]


HOST = {"CPU": 8.0, "GPU": 4.0, "accelerator_type:H100": 1.0}
OTHER = {"CPU": 8.0, "GPU": 2.0, "accelerator_type:A100": 1.0}
LAPTOP = {"CPU": 2.0}
PLACES = [
    ({}, None, [HOST, OTHER, LAPTOP], (True, {"": 6})),
    ({"device": "cuda"}, None, [HOST], (True, {"": 4})),
    ({"accelerators": "H100,A100"}, None, [HOST, OTHER, HOST], (True, {"H100": 8, "A100": 2})),
    ({"device": "cpu"}, None, [HOST, LAPTOP], (False, {"": 10})),
    ({}, 3, [LAPTOP, LAPTOP], (False, {"": 3})),
    ({"accelerators": "cpu"}, 1, [HOST], (False, {"cpu": 1})),
]
NOWHERE = [
    ({"device": "cuda"}, None, [LAPTOP], "--on ray: the cluster has no GPU"),
    ({"device": "cuda:1"}, None, [HOST], "--on ray: Ray chooses the GPUs; take --device cuda, not cuda:1"),
    ({"device": "tpu"}, None, [HOST], "unknown device 'tpu'; there are: cpu, cuda"),
    ({"accelerators": "H100,B200"}, None, [HOST], "unknown accelerator of the cluster .B200. .*there are: H100"),
    ({"accelerators": "H10O"}, None, [HOST], "did you mean H100"),
    ({"accelerators": "H100"}, None, [LAPTOP], "accelerators: expected cpu for a cluster without GPUs, got H100"),
    ({}, 3, [HOST], "--jobs: on GPUs there is one worker for each"),
    ({}, None, [{}], "--on ray: the cluster has no core for a worker"),
]


def places(keys, jobs, has):
    nodes = [{"Alive": True, "Resources": one} for one in has] + [{"Alive": False, "Resources": HOST}]
    return joined.places(checked({"kernels": ["k"]} | keys), jobs, nodes)


@pytest.mark.parametrize(("keys", "jobs", "has", "found"), PLACES)
def test_each_gpu_has_one_worker(keys, jobs, has, found):
    assert places(keys, jobs, has) == found


@pytest.mark.parametrize(("keys", "jobs", "has", "said"), NOWHERE, ids=[row[3][:40] for row in NOWHERE])
def test_a_device_that_nobody_has_is_one_line(keys, jobs, has, said):
    with pytest.raises(UsageError, match=said) as error:
        places(keys, jobs, has)
    assert "\n" not in str(error.value)


ADDRESSES = ["127.0.0.1:1", "ray://127.0.0.1:1", "[::1]:1", "127.0.0.1:99999", "nonsense", "http://127.0.0.1:1"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_without_a_cluster_is_one_line(address, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(UsageError, match="--on ray") as error:
        on_ray.OnRay(PLAN, address)
    assert "\n" not in str(error.value)


def test_a_cluster_that_does_not_take_us_is_one_line_that_says_what_to_do(monkeypatch):
    def init(*arguments, **options):
        raise ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379\nsee the logs")

    monkeypatch.setattr("ray.init", init)
    with pytest.raises(UsageError, match=r"cluster at 10.0.0.1:6379; it needs .* RAY_AUTH_MODE=token if it asks"):
        joined.connect("auto")


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("verify_norm.core.packages.present", lambda name: name != "ray")
    with pytest.raises(UsageError, match=r"--on ray needs ray: pip install 'verify-norm\[ray\]'"):
        on_ray.OnRay(PLAN)


def test_a_host_with_other_versions_is_refused_and_a_worker_has_the_name_of_its_place():
    executor = object.__new__(on_ray.OnRay)
    here = actor.versions()
    executor._on_gpu = True
    one = on_ray._Worker(3, "", None)
    assert executor._named(one, actor.Place("10.0.0.2", "5", here)).name == "10.0.0.2 cuda:5"
    executor._on_gpu = False
    assert executor._named(one, actor.Place("10.0.0.2", "", here)).name == "10.0.0.2 cpu 4"
    for name in here:
        with pytest.raises(UsageError, match=f"10.0.0.2 has {name} 0.1, here it is {here[name]}"):
            executor._named(one, actor.Place("10.0.0.2", "", here | {name: "0.1"}))


@pytest.mark.parametrize(("job", "ships"), [("", True), ("{}", True), ('{"runtime_env": {"working_dir": "x"}}', False)])
def test_the_package_and_the_working_folder_go_to_the_hosts_unless_a_job_has_them(tmp_path, monkeypatch, job, ships):
    given = {}

    def init(address, **options):
        given.update(options)

    monkeypatch.setattr("ray.init", init)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(joined.JOB, job) if job else monkeypatch.delenv(joined.JOB, raising=False)
    joined.connect("auto")
    shipped = given["runtime_env"]
    assert bool(shipped) == ships
    if ships:
        assert shipped["working_dir"] == str(tmp_path)
        assert (Path(shipped["py_modules"][0]) / "campaign" / "actor.py").is_file()


LOST = [
    ("The actor died because its node has died. Node Id: 1", True),
    ("The actor is dead because its worker process has died.", False),
]


@pytest.mark.slow
@pytest.mark.parametrize(("said", "host"), LOST)
def test_a_lost_host_is_told_from_a_lost_worker(said, host):
    from ray.exceptions import ActorDiedError, ActorUnavailableError

    error = ActorDiedError()
    error.error_msg = said
    assert on_ray._of_host(error) == host
    assert on_ray._of_host(ActorUnavailableError(said, None))
