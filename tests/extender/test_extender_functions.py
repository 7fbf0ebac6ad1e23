"""Plain functions as an extender, and those that come along: image_score, always_true, safe-overload."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from extender_staging import asking, node, pod, serving, serving_functions

from fake_prometheus import fake_prometheus, until, vector
from stowplan.errors import InputError
from stowplan.extender import predicate, preemption, priority
from stowplan.extender.functions import load_functions, with_settings
from stowplan.extender.worked import safe
from stowplan.extender.worked.always_true import always_true, keep_all, zero_score
from stowplan.extender.worked.image_score import image_score

IMAGE_SCORE = "/my_scheduler_extension/my_new_priorities/image_score"


def whole(about, *nodes):
    """ExtenderArgs as kube-scheduler sends them to an extender that knows no nodes."""
    return {"Pod": about, "Nodes": {"metadata": {}, "items": list(nodes)}, "NodeNames": None}


def holding(name, *images):
    made = node(name)
    made["status"]["images"] = [{"names": [image]} for image in images]
    return made


def with_images(*images):
    made = pod("pod-nginx-ext-scheduler1")
    made["spec"]["containers"] = [{"name": f"c{k}", "image": image} for k, image in enumerate(images)]
    return made


@predicate
def in_a_zone(pod, node):
    return "zone" in node.labels or "no zone"


@predicate
def refuses(pod, node):
    return False


@predicate
def answers_nonsense(pod, node):
    return None


@priority
def raises(pod, node):
    return 1 // 0


@predicate
def says_nothing(pod, node): ...


@priority
def divides(pod, node):
    return 2 / 0


@priority(name="wordy")
def answers_words(pod, node, *, words: str = "many"):
    return words


@priority
def hangs(pod, node):
    time.sleep(5)


@priority(path="/longest", name="longest")
def by_length(pod, node, *, factor: int = 1, sign: str = "+"):
    return len(node.name) * factor


async def asked(function, *nodes, about=None, path="", settings=(), **options):
    functions = tuple(with_settings([function], settings))
    async with serving_functions(functions=functions, **options) as stage:
        return (await stage.ask(path or function.path, whole(about or pod(), *nodes))).json


async def test_a_predicate():
    good = node("good", labels={"zone": "a"})
    answer = await asked(in_a_zone, good, node("bad"))
    assert answer["Nodes"]["items"] == [good]
    assert answer["FailedNodes"] == {"bad": "no zone"}


async def test_a_predicate_without_a_reason_gets_one():
    answer = await asked(refuses, node("n1"))
    assert answer["FailedNodes"] == {"n1": "predicate refuses rejects the node"}


@pytest.mark.parametrize(
    ("settings", "scores"),
    [
        pytest.param([], [3, 5], id="as it is"),
        pytest.param(["by_length.factor=4"], [12, 20], id="with an option, beyond 10"),
    ],
)
async def test_a_priority(settings, scores):
    answer = await asked(by_length, node("abc"), node("abcde"), path="/longest", settings=settings)
    assert [each["Score"] for each in answer] == scores


async def test_functions_that_fail():
    broken = await asked(answers_nonsense, node("n1"))
    assert "expected True, False or a reason, got None" in broken["Error"]
    assert await asked(raises, node("n1")) == [{"Host": "n1", "Score": 0}]
    began = time.monotonic()
    assert await asked(hangs, node("n1"), budget=0.2) == [{"Host": "n1", "Score": 0}]
    assert time.monotonic() - began < 3


def line_of(text):
    """Where the definition is, as errors say it."""
    lines = Path(__file__).read_text().splitlines()
    return f"test_extender_functions.py:{lines.index(text) + 1}"


@pytest.mark.parametrize(
    ("function", "settings", "expected", "line"),
    [
        pytest.param(
            says_nothing,
            [],
            "predicate says_nothing: expected True, False or a reason, got None",
            "def says_nothing(pod, node): ...",
            id="a predicate",
        ),
        pytest.param(
            answers_words,
            ["answers_words.words=few"],
            "priority wordy: expected a whole number as score, got 'few'",
            'def answers_words(pod, node, *, words: str = "many"):',
            id="a priority with an option",
        ),
        pytest.param(
            divides,
            [],
            "priority divides: ZeroDivisionError: division by zero",
            "    return 2 / 0",
            id="one that raises",
        ),
    ],
)
async def test_an_error_names_the_line_of_the_function(caplog, function, settings, expected, line):
    await asked(function, node("n1"), about=pod("a"), settings=settings)
    (fields,) = [record.fields for record in caplog.records if record.levelno == logging.ERROR]
    message, _, where = str(fields["err"]).partition(" (")
    assert message == expected
    assert where.startswith("pod default/a, node n1, at ")
    assert where.endswith(f"{line_of(line)})")
    assert line.strip() in fields["stacktrace"]


async def test_names_need_a_view_of_the_cluster():
    async with serving_functions(functions=(in_a_zone,)) as stage:
        answer = (await stage.ask(in_a_zone.path, asking(pod(), "n1"))).json
        assert "start it with --follow or --kubeconfig" in answer["Error"]
    async with serving(node("n1", labels={"zone": "a"}), functions=(in_a_zone,)) as stage:
        answer = (await stage.ask(in_a_zone.path, asking(pod(), "n1", "n2"))).json
        assert answer["NodeNames"] == ["n1"]
        assert answer["FailedNodes"] == {"n2": "the extender does not know this node"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["by_length.factor"], "expected FUNCTION.OPTION=VALUE"),
        (["by_length.size=1"], "by_length has no option 'size'; it takes factor, sign"),
        (["nobody.factor=1"], "unknown function nobody (known: by_length)"),
        (["by_length.factor=many"], "by_length.factor=many"),
    ],
)
def test_settings_that_are_refused(settings, words):
    with pytest.raises(InputError, match="--set") as failure:
        with_settings([by_length], settings)
    assert words in str(failure.value).replace("longest", "by_length")


def test_functions_are_found_in_files_and_modules(tmp_path):
    (tmp_path / "rules_of_mine.py").write_text(
        "from stowplan.extender import predicate\n@predicate\ndef mine(pod, node):\n    return True\n"
    )
    (found,) = load_functions(str(tmp_path / "rules_of_mine.py"))
    assert (found.kind, found.path) == ("predicate", "/predicates/mine")
    assert load_functions("stowplan.extender.worked.image_score") == [image_score]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "contains no function decorated"),
        ("1 / 0", "ZeroDivisionError"),
        (None, "no such file"),
    ],
)
def test_files_that_are_refused(tmp_path, text, words):
    if text is not None:
        (tmp_path / "bad_rules.py").write_text(text)
    with pytest.raises(InputError, match=words):
        load_functions(str(tmp_path / "bad_rules.py"))


# image_score


async def test_tutorial_4s_three_nodes(caplog):
    caplog.set_level(1, "stowplan")
    nodes = [node("master-node"), node("worker-node1"), holding("worker-node2", "nginx:1.7.9")]
    about = with_images("nginx:1.7.9")
    answer = await asked(image_score, *nodes, about=about, path=IMAGE_SCORE)
    assert answer == [
        {"Host": "master-node", "Score": 0},
        {"Host": "worker-node1", "Score": 0},
        {"Host": "worker-node2", "Score": 1},
    ]
    (said,) = [each.fields for each in caplog.records if each.getMessage() == "Prioritized nodes"]
    assert said["scores"] == {"master-node": 0, "worker-node1": 0, "worker-node2": 1}
    (matched,) = [each.fields for each in caplog.records if "matches" in each.getMessage()]
    assert matched.pop("pod").key == "default/pod-nginx-ext-scheduler1"
    assert matched == {
        "container": "c0",
        "containerImage": "nginx:1.7.9",
        "nodeImage": "nginx:1.7.9",
        "node": "worker-node2",
    }


@pytest.mark.parametrize(
    ("wanted", "held", "settings", "score"),
    [
        pytest.param(["nginx"], ["docker.io/nginx:1"], [], 1, id="a part of a name is enough"),
        pytest.param(["nginx", "nginx"], ["nginx:1"], [], 2, id="each container counts"),
        pytest.param(["a", "b", "c"], ["a", "b"], ["scale=true"], 7, id="scaled and rounded"),
        pytest.param(
            ["nginx:1.7"], ["docker.io/library/nginx:1.7.9"], ["match=reference"], 0, id="other tag"
        ),
        pytest.param(["nginx"], ["docker.io/library/nginx:latest"], ["match=reference"], 1, id="completed"),
        pytest.param(
            ["quay.io/a/b@sha256:12"], ["quay.io/a/b@sha256:12"], ["match=reference"], 1, id="by digest"
        ),
        pytest.param(
            ["a/b:1@sha256:12"], ["a/b:1"], ["match=reference"], 0, id="a digest is more than a tag"
        ),
        pytest.param(
            ["localhost:5000/a"], ["localhost:5000/a:latest"], ["match=reference"], 1, id="a registry's port"
        ),
        pytest.param([], ["nginx"], ["scale=true"], 0, id="no containers"),
    ],
)
async def test_image_score(wanted, held, settings, score):
    settings = [f"image_score.{each}" for each in settings]
    answer = await asked(image_score, holding("n1", *held), about=with_images(*wanted), settings=settings)
    assert answer == [{"Host": "n1", "Score": score}]


async def test_always_true_and_zero_score():
    assert (await asked(always_true, node("n1")))["Nodes"]["items"] == [node("n1")]
    assert await asked(zero_score, node("n1")) == [{"Host": "n1", "Score": 0}]


VICTIMS = {"n1": {"Pods": [{"UID": "a"}, {"UID": "b"}], "NumPDBViolations": 1}, "n2": {"Pods": []}}


async def preempted(function):
    async with serving_functions(functions=(function,)) as stage:
        return await stage.ask(function.path, {"Pod": pod(), "NodeNameToMetaVictims": VICTIMS})


async def test_preemption_keeps_all_nodes_in_the_template():
    assert keep_all.path == "/scheduler/preemption"
    kept = (await preempted(keep_all)).json["NodeNameToMetaVictims"]
    assert {name: [each["UID"] for each in victims["Pods"]] for name, victims in kept.items()} == {
        "n1": ["a", "b"],
        "n2": [],
    }
    assert kept["n1"]["NumPDBViolations"] == 1


async def test_a_function_can_spare_victims():
    @preemption
    def spare_a(pod, node_name, victims):
        return "a" not in victims

    assert spare_a.path == "/preemption/spare_a"
    assert list((await preempted(spare_a)).json["NodeNameToMetaVictims"]) == ["n2"]


async def test_an_answer_to_preemption_that_is_none():
    @preemption
    def undecided(pod, node_name, victims):
        return "maybe"

    answer = await preempted(undecided)
    assert answer.status == 500
    assert "expected True or False, got 'maybe'" in answer.body.decode()


async def test_the_version_is_served():
    async with serving_functions(functions=(always_true,)) as stage:
        answer = await stage.ask("/version", method="GET")
    assert (answer.status, answer.body.decode().strip()) == (200, version("stowplan"))


# safe-overload and safe-balance


def used(name="n1", *, cpu=None, memory=None, **annotations):
    """A node of 10 CPU and 10 GB; a pair is the mean and deviation of what is free, in thousandths."""
    for resource, pair in (("cpu", cpu), ("memory", memory)):
        if pair is not None:
            unit = 1 if resource == "cpu" else 1_000_000
            annotations[f"mean-free-{resource}"], annotations[f"std-free-{resource}"] = (
                str(value * unit) for value in pair
            )
    made = node(name, annotations=annotations)
    made["status"]["allocatable"] = {"cpu": "10", "memory": "10G", "pods": "10"}
    return made


ASKS_NOTHING = pod(cpu="0")


@pytest.mark.parametrize(
    ("function", "made", "score"),
    [
        pytest.param(safe.safe_balance, used(cpu=(5000, 400)), 7, id="safe-balance, mean .5, deviation .04"),
        pytest.param(
            safe.safe_overload, used(cpu=(4000, 1000)), 9, id="safe-overload, mean .6, deviation .1"
        ),
        pytest.param(safe.safe_overload, used(cpu=(2500, 1000)), 6, id="safe-overload, mean .75"),
        pytest.param(safe.safe_balance, used(cpu=(5000, 400), memory=(9000, 0)), 7, id="the scarcer counts"),
        pytest.param(safe.safe_balance, used(memory=(9000, 0)), 10, id="memory alone"),
        pytest.param(safe.safe_balance, used(), 0, id="no data, nobody's favourite"),
        pytest.param(safe.safe_overload, used(), 0, id="no data, no favourite of safe-overload"),
        pytest.param(
            safe.safe_balance, used(**{"mean-free-cpu": "much"}), 0, id="an annotation that is none"
        ),
        pytest.param(
            safe.safe_balance,
            used(cpu=(5000, 0), **{"forcasted-free-cpu": "0"}),
            7,
            id="a forecast counts a fifth: mean .6",
        ),
        pytest.param(safe.safe_overload, used(cpu=(5000, 1e-190)), 10, id="a deviation of next to nothing"),
        pytest.param(safe.safe_overload, used(cpu=(5000, 1e-90)), 10, id="a tiny deviation"),
    ],
)
async def test_safe_scores(function, made, score):
    assert await asked(function, made, about=ASKS_NOTHING) == [{"Host": "n1", "Score": score}]


async def test_safe_overload_refuses_what_would_be_too_full():
    risky, safer = used("risky", cpu=(1500, 1000)), used("safer", cpu=(5000, 500))
    answer = await asked(safe.overload_is_unlikely, risky, safer, used("unknown"), about=pod(cpu="1"))
    assert [each["metadata"]["name"] for each in answer["Nodes"]["items"]] == ["safer", "unknown"]
    assert answer["FailedNodes"]["risky"].startswith("cpu would be used beyond 90% with a risk of 0.8")


async def test_usage_from_prometheus(monkeypatch):
    """Two nodes of 8 CPU with 5 requested each: the one less used over the last six hours is better."""
    monkeypatch.setattr(safe, "usage", safe.Usage(-math.inf, {}))
    nodes = [node("busy", cpu="8"), node("idle", cpu="8")]
    running = [pod("b", on="busy", cpu="5"), pod("i", on="idle", cpu="5")]
    async with fake_prometheus() as prometheus:
        prometheus.answer = vector({"busy": 5000, "idle": 1000}, "node")
        settings = [f"read_usage.prometheus={prometheus.url}", "read_usage.refresh_seconds=0.01"]
        functions = tuple(with_settings([safe.read_usage, safe.safe_balance], settings))
        async with serving(*nodes, *running, functions=functions) as stage:
            work = stage.extender.options.functions[0].call
            task = asyncio.create_task(work())
            await until(lambda: safe.usage.nodes != {})
            answer = (await stage.ask(safe.safe_balance.path, asking(pod(), "busy", "idle"))).json
            task.cancel()
    scores = {each["Host"]: each["Score"] for each in answer}
    assert scores["idle"] > scores["busy"]
    assert any("[6h:5m]" in query and query.startswith("avg_over_time") for query in prometheus.queries)
