"""Config files, layers and their merging."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_aiptraining.core.config import (
    Layer,
    MergedJob,
    append_args,
    check,
    finish,
    layer_from,
    merge,
    params_layer,
    parse_config,
    render_layer,
)
from airflow_aiptraining.core.config_file import MAX_BYTES
from airflow_aiptraining.core.overridable import DEFAULT_OVERRIDABLE
from airflow_aiptraining.exceptions import InvalidJobError, Violation

CONFIG = """\
# retraining of the census model
labels:
  team: forecasting
trainingInput:
  scaleTier: CUSTOM
  masterType: n1-highcpu-16
  workerType: n1-highcpu-16
  workerCount: 9
  runtimeVersion: 2.10
  pythonVersion: '3.7'
  args:
    - --epochs
    - 10
  scheduling:
    maxRunningTime: 7200s
"""


# fmt: off
YAML_PIECES = [
    "trainingInput", "labels", "args", "a", ": ", ":", "- ", "[", "]", "{", "}", ",", "&a ", "*a",
    "<<", "!!str ", "!x ", "'", '"', "|", ">", "? ", "#", "%", "~", "null", "é", "\\", "{{ x }}",
    "...", "  ", "\n", "---\n", "\t", "\ufeff", "\u2028",
]
# fmt: on


def parsed(text: str | bytes, name: str = "config.yaml") -> Layer:
    return parse_config(text.encode() if isinstance(text, str) else text, name)


def violations_of(action: Callable[[], Any]) -> list[Violation]:
    with pytest.raises(InvalidJobError) as caught:
        action()
    return list(caught.value.violations)


def told(text: str | bytes) -> list[str]:
    """Return the violations of a config file, as texts."""
    return [str(violation) for violation in violations_of(lambda: parsed(text))]


def whole_job(**training_input: Any) -> dict[str, Any]:
    return {
        "jobId": "census_20240101",
        "trainingInput": {
            "region": "us-central1",
            "packageUris": ["gs://bucket/trainer-0.1.tar.gz"],
            "pythonModule": "trainer.task",
            "runtimeVersion": "2.11",
            "pythonVersion": "3.7",
            **training_input,
        },
    }


class TestReadingAFile:
    def test_every_scalar_stays_text(self) -> None:
        training_input = parsed(CONFIG).values["trainingInput"]
        assert training_input["runtimeVersion"] == "2.10"
        assert training_input["pythonVersion"] == "3.7"
        assert training_input["workerCount"] == "9"
        assert training_input["args"] == ["--epochs", "10"]

    def test_each_value_has_its_line(self) -> None:
        layer = parsed(CONFIG)
        assert layer.lines["labels.team"] == 3
        assert layer.lines["trainingInput.workerCount"] == 8
        assert layer.lines["trainingInput.args"] == 11
        assert layer.lines["trainingInput.args[1]"] == 13
        assert layer.origin("trainingInput.scheduling.maxRunningTime") == "config.yaml:15"

    def test_a_place_inside_a_value_has_the_values_line(self) -> None:
        assert parsed(CONFIG).origin("trainingInput.workerCount.x") == "config.yaml:8"
        assert parsed(CONFIG).origin("nowhere") == "config.yaml"

    @pytest.mark.parametrize(
        ("written", "value"),
        [
            ("null", None),
            ("~", None),
            ("", None),
            ("'null'", "null"),
            ('"~"', "~"),
            ("''", ""),
            ("yes", "yes"),
            ("0x10", "0x10"),
            ("1_000", "1_000"),
            ("2024-01-01", "2024-01-01"),
            ("!!str null", "null"),
            ("!!int 3", "3"),
            ("|\n    a\n    b", "a\nb\n"),
            (">-\n    a\n    b", "a b"),
        ],
    )
    def test_only_plain_null_means_nothing(self, written: str, value: str | None) -> None:
        layer = parsed(f"trainingInput:\n  region: {written}\n")
        assert layer.values == {"trainingInput": {"region": value}}

    def test_an_empty_value_is_noted(self) -> None:
        layer = parsed("trainingInput:\n  region:\n  args: [a, ~]\n")
        assert layer.notes == (
            "config.yaml:2: trainingInput.region is empty; it counts as not given",
        )

    def test_json_is_read_too(self) -> None:
        text = json.dumps({"trainingInput": {"args": ["--n", "é"], "region": None}}, indent="\t")
        layer = parsed(text)
        assert layer.values == {"trainingInput": {"args": ["--n", "é"], "region": None}}
        assert layer.lines["trainingInput.args[1]"] == 5

    def test_a_byte_order_mark_and_windows_lines_are_no_matter(self) -> None:
        layer = parsed(b"\xef\xbb\xbftrainingInput:\r\n  region: x\r\n")
        assert layer.values == {"trainingInput": {"region": "x"}}
        assert layer.lines["trainingInput.region"] == 2

    def test_anchors_aliases_and_merge_keys_work(self) -> None:
        layer = parsed(
            "trainingInput:\n"
            "  masterConfig: &replica\n"
            "    imageUri: gcr.io/p/i\n"
            "    diskConfig: {bootDiskSizeGb: 50, bootDiskType: pd-ssd}\n"
            "  workerConfig: *replica\n"
            "  parameterServerConfig:\n"
            "    <<: *replica\n"
            "    imageUri: gcr.io/p/other\n"
        )
        training_input = layer.values["trainingInput"]
        assert training_input["workerConfig"] == training_input["masterConfig"]
        assert training_input["parameterServerConfig"] == {
            "imageUri": "gcr.io/p/other",
            "diskConfig": {"bootDiskSizeGb": "50", "bootDiskType": "pd-ssd"},
        }
        assert layer.lines["trainingInput.parameterServerConfig.imageUri"] == 8
        assert layer.lines["trainingInput.parameterServerConfig.diskConfig"] == 4

    def test_the_first_of_several_merged_mappings_wins(self) -> None:
        layer = parsed(
            "trainingInput:\n  masterConfig: &a {imageUri: a}\n"
            "  workerConfig: &b {imageUri: b, tpuTfVersion: '2.1'}\n"
            "  evaluatorConfig: {<<: [*a, *b]}\n"
        )
        evaluator = layer.values["trainingInput"]["evaluatorConfig"]
        assert evaluator == {"imageUri": "a", "tpuTfVersion": "2.1"}


class TestRefusingAFile:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "config.yaml: the file is empty"),
            ("# only a comment\n", "config.yaml: the file is empty"),
            ("---\n", "config.yaml: the file is empty"),
            ("- a\n", "config.yaml:1: the file holds a list"),
            ("just text", "config.yaml:1: the file holds plain text"),
            ("trainingInput:\n", "config.yaml:1: trainingInput: trainingInput holds nothing"),
            ("trainingInput: [a]\n", "config.yaml:1: trainingInput: trainingInput holds a list"),
            ("trainingInput: BASIC\n", "config.yaml:1: trainingInput: trainingInput holds plain"),
            ("labels: [a]\n", "config.yaml:1: labels: labels holds a list"),
            ("trainingInput: {}\n---\na: 1\n", "config.yaml:2: a second document"),
            ("trainingInput:\n\tregion: x\n", "config.yaml:2: not readable as YAML (column 1)"),
            ("trainingInput:\n  args: [1\n", "config.yaml:2: not readable as YAML (column 9)"),
            ("trainingInput: [1\nlabels: {}\n", "that starts in line 1"),
            ("a: {{ ds }}\n", 'Quote a template: "{{ … }}"'),
            ("a: {{ ds }}-x\n", 'Quote a value with a template in it: "{{ … }}"'),
            ("a: @x\n", "Quote a value that starts with % or @"),
            ("a: *b\n", "config.yaml:1: *b names nothing"),
            ("a: &a [*a]\n", "config.yaml:1: *a stands inside the value"),
            ("a: &a {b: {<<: *a}}\n", "config.yaml:1: *a stands inside the value"),
            ("a: !!python/object/apply:os.system [ls]\n", "the tag '!!python/object/apply:os.sys"),
            ("a: !custom x\n", "the tag '!custom' is not read here"),
            ("? [a]\n: 1\n", "a key must be plain text, not a list"),
            ("~: 1\n", "this value has no key"),
            ("a: 'x\x1by'\n", "control character U+001B in column 6"),
            ("a: 1\nb: '\x00'\n", "config.yaml:2: control character U+0000"),
            ("<<: 1\n", "'<<' takes a mapping"),
            ("k" * 300 + ": 1\n", "a key of 300 characters"),
        ],
    )
    def test_the_error_says_where_and_what(self, text: str, message: str) -> None:
        assert message in "\n".join(told(text))

    @pytest.mark.parametrize(
        ("data", "message"),
        [
            ("a: 1".encode("utf-16"), "the file is UTF-16"),
            ("a: 1".encode("utf-32"), "the file is UTF-32"),
            ("a: 12345".encode("utf-16-le"), "UTF-16 or binary"),
            (b"a: 1\nb: caf\xe9", "config.yaml:2: the file is not UTF-8 (byte 0xe9 at offset 11)"),
        ],
    )
    def test_another_encoding_is_named(self, data: bytes, message: str) -> None:
        assert message in told(data)[0]

    def test_a_key_given_twice_is_told_with_both_lines(self) -> None:
        text = "trainingInput:\n  region: a\n  args: []\n  region: b\n  args: [x]\n"
        assert told(text) == [
            "config.yaml:4: 'region' is given twice, in lines 2 and 4: keep one",
            "config.yaml:5: 'args' is given twice, in lines 3 and 5: keep one",
        ]

    def test_one_key_in_both_spellings_is_refused(self) -> None:
        text = "training_input:\n  scaleTier: BASIC\n  scale_tier: CUSTOM\n"
        assert told(text) == [
            "config.yaml:3: trainingInput.scaleTier: given twice, as scaleTier and scale_tier: "
            "keep one"
        ]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("[" * 1000, "more than 100 levels of nesting"),
            ("{a: " * 1000, "more than 100 levels of nesting"),
            ("[" * 500_000, "more than 100 levels of nesting"),
            (
                "a0: &a0 [x]\n"
                + "".join(f"a{i}: &a{i} [[[[[[*a{i - 1}]]]]]]\n" for i in range(1, 40)),
                "more than 100 levels of nesting",
            ),
            (
                "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
                + "".join(f"a{i}: &a{i} [{f'*a{i - 1},' * 10}]\n" for i in range(1, 12)),
                "more than 100,000 values once aliases are expanded",
            ),
            (
                f"a: &a {{{','.join(f'k{i}: 1' for i in range(20_000))}}}\n"
                + "".join(f"b{i}: {{<<: *a}}\n" for i in range(1000)),
                "more than 100,000 values",
            ),
            ("a" * 2 * MAX_BYTES, "the file has 2,097,152 bytes"),
        ],
        ids=["lists", "mappings", "endless", "nested aliases", "laughs", "merged laughs", "size"],
    )
    def test_a_hostile_file_is_refused_quickly(self, text: str, message: str) -> None:
        start = time.process_time()
        assert message in told(text)[0]
        assert time.process_time() - start < 5

    @given(st.binary(max_size=200))
    def test_bytes_give_a_layer_or_a_clear_error(self, data: bytes) -> None:
        try:
            assert isinstance(parsed(data), Layer)
        except InvalidJobError as error:
            assert error.violations

    @given(
        st.lists(
            st.sampled_from(YAML_PIECES),
            max_size=30,
        )
    )
    def test_text_like_yaml_gives_a_layer_or_a_clear_error(self, pieces: list[str]) -> None:
        try:
            layer = parsed("".join(pieces))
        except InvalidJobError as error:
            assert error.violations
        else:
            assert set(layer.lines.values()) <= set(range(1, len(pieces) + 2))


class TestKeys:
    def test_snake_case_is_read_as_the_api_spells_it(self) -> None:
        layer = parsed("training_input:\n  master_config:\n    image_uri: x\n")
        assert layer.values == {"trainingInput": {"masterConfig": {"imageUri": "x"}}}
        assert layer.lines["trainingInput.masterConfig.imageUri"] == 3

    def test_keys_of_labels_are_the_users_own(self) -> None:
        layer = parsed("labels:\n  cost_center: a\n  costCenter: b\n")
        assert layer.values == {"labels": {"cost_center": "a", "costCenter": "b"}}

    def test_the_job_id_of_a_file_is_dropped_with_a_note(self) -> None:
        layer = parsed("job_id: mine\ntrainingInput: {region: x}\n")
        assert "jobId" not in layer.values
        assert layer.notes == ("config.yaml:1: jobId is ignored; the task makes its job's id",)

    def test_python_values_are_read_in_both_spellings(self) -> None:
        layer = layer_from("argument training_input", {"training_input": {"worker_count": 3}})
        assert layer.values == {"trainingInput": {"workerCount": 3}}
        assert layer.origin("trainingInput.workerCount") == "argument training_input"

    def test_python_keys_that_are_no_text_are_refused(self) -> None:
        found = violations_of(lambda: layer_from("argument labels", {"labels": {1: "x"}}))
        assert [str(v) for v in found] == ["argument labels: labels: a key must be text, not 1"]

    def test_python_values_without_an_end_are_refused(self) -> None:
        values: dict[str, Any] = {}
        values["trainingInput"] = values
        found = violations_of(lambda: layer_from("argument training_input", values))
        assert "nested too deep" in found[0].message

    def test_a_layer_is_independent_of_what_it_was_made_from(self) -> None:
        values: dict[str, Any] = {"trainingInput": {"args": ["a"]}}
        layer = layer_from("argument args", values)
        values["trainingInput"]["args"].append("b")
        assert layer.values == {"trainingInput": {"args": ["a"]}}


class TestRendering:
    def test_values_are_rendered_and_keys_are_not(self) -> None:
        layer = parsed(
            'labels: {"{{ k }}": "{{ v }}"}\ntrainingInput: {args: ["{{ a }}", ~], region: ~}\n'
        )
        rendered = render_layer(layer, lambda text: text.replace("{{ ", "<").replace(" }}", ">"))
        assert rendered.values == {
            "labels": {"{{ k }}": "<v>"},
            "trainingInput": {"args": ["<a>", None], "region": None},
        }
        assert rendered.lines == layer.lines

    def test_a_rendered_text_never_becomes_structure(self) -> None:
        layer = parsed("trainingInput: {region: '{{ x }}'}\n")
        rendered = render_layer(layer, lambda _: "[a, b]: {c: d}\n- e")
        assert rendered.values == {"trainingInput": {"region": "[a, b]: {c: d}\n- e"}}

    @pytest.mark.parametrize("result", [["a"], {"a": 1}, ("a",), object()])
    def test_a_template_that_gives_structure_is_refused(self, result: object) -> None:
        layer = parsed("trainingInput:\n  region: '{{ x }}'\n")
        found = violations_of(lambda: render_layer(layer, lambda _: result))
        assert str(found[0]).startswith("config.yaml:2: trainingInput.region: its template gave a")

    def test_numbers_of_a_native_environment_keep_their_text_where_it_is_sure(self) -> None:
        layer = parsed("trainingInput: {args: [a, b, c]}\n")
        results = iter([3, True, 2.1])
        rendered = render_layer(layer, lambda _: next(results))
        assert rendered.values == {"trainingInput": {"args": ["3", "True", 2.1]}}

    def test_every_failed_template_is_told_with_its_line(self) -> None:
        def fail(text: str) -> str:
            raise KeyError(text)

        layer = parsed("labels:\n  a: '{{ x }}'\ntrainingInput:\n  args:\n    - '{{ y }}'\n")
        assert [str(v) for v in violations_of(lambda: render_layer(layer, fail))] == [
            "config.yaml:2: labels.a: its template failed: KeyError: '{{ x }}'",
            "config.yaml:5: trainingInput.args[0]: its template failed: KeyError: '{{ y }}'",
        ]


class TestMerging:
    def test_a_later_layer_wins_and_origins_say_which(self) -> None:
        merged = merge(
            [
                parsed(CONFIG),
                layer_from("argument worker_count", {"trainingInput": {"workerCount": 5}}),
                layer_from("argument labels", {"labels": {"owner": "ann"}}),
            ]
        )
        assert merged.job["trainingInput"]["workerCount"] == 5
        assert merged.job["labels"] == {"team": "forecasting", "owner": "ann"}
        assert merged.origins["trainingInput.workerCount"] == "argument worker_count"
        assert merged.origins["trainingInput.masterType"] == "config.yaml:6"
        assert merged.origins["labels.team"] == "config.yaml:3"
        assert merged.origins["labels.owner"] == "argument labels"

    def test_lists_are_replaced_as_a_whole(self) -> None:
        new = layer_from("argument args", {"trainingInput": {"args": ["--lr"]}})
        merged = merge([parsed(CONFIG), new])
        assert merged.job["trainingInput"]["args"] == ["--lr"]
        of_args = {path: o for path, o in merged.origins.items() if ".args" in path}
        assert of_args == {
            "trainingInput.args": "argument args",
            "trainingInput.args[0]": "argument args",
        }

    def test_none_means_not_given_in_every_layer(self) -> None:
        empty = layer_from(
            "argument training_input",
            {"trainingInput": {"region": None, "scheduling": {"priority": None}}, "labels": None},
        )
        file = parsed("trainingInput: {region: us-central1}\n")
        assert merge([file, empty]).job == {"trainingInput": {"region": "us-central1"}}
        assert merge([empty]).job == {}

    def test_an_empty_list_is_a_value(self) -> None:
        none = layer_from("argument args", {"trainingInput": {"args": []}})
        assert merge([parsed(CONFIG), none]).job["trainingInput"]["args"] == []

    def test_machines_without_a_scale_tier_mean_custom(self) -> None:
        merged = merge([parsed("trainingInput: {masterType: n1-highcpu-16}\n")])
        assert merged.job["trainingInput"]["scaleTier"] == "CUSTOM"
        assert merged.origins["trainingInput.scaleTier"] == "config.yaml:1 (implied by masterType)"
        assert merged.notes == (
            "trainingInput.scaleTier is not given: machine types and counts (masterType) mean "
            "CUSTOM",
        )

    def test_a_scale_tier_that_is_given_stays(self) -> None:
        merged = merge([parsed("trainingInput: {scaleTier: BASIC, workerCount: 1}\n")])
        assert merged.job["trainingInput"]["scaleTier"] == "BASIC"
        assert merged.notes == ()

    def test_layers_stay_as_they_were(self) -> None:
        low, high = parsed(CONFIG), layer_from("x", {"labels": {"a": "b"}})
        merge([low, high]).job["labels"]["team"] = "changed"
        assert low.values == parsed(CONFIG).values
        assert high.values == {"labels": {"a": "b"}}

    def test_a_mapping_over_text_replaces_it_with_its_origins(self) -> None:
        low = layer_from("low", {"trainingInput": {"scheduling": "soon"}})
        high = layer_from("high", {"trainingInput": {"scheduling": {"priority": 1}}})
        assert merge([low, high]).origins == {
            "trainingInput.scheduling": "high",
            "trainingInput.scheduling.priority": "high",
        }
        assert merge([high, low]).origins == {"trainingInput.scheduling": "low"}

    @given(st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "labels": st.dictionaries(st.sampled_from("abc"), st.text(max_size=2)),
                "trainingInput": st.fixed_dictionaries(
                    {},
                    optional={
                        "region": st.none() | st.sampled_from("xy"),
                        "args": st.lists(st.sampled_from("pq"), max_size=2),
                        "scheduling": st.dictionaries(
                            st.sampled_from(["priority", "maxWaitTime"]),
                            st.none() | st.integers(0, 2),
                        ),
                    },
                ),
            },
        ),
        min_size=3,
        max_size=3,
    ))  # fmt: skip
    def test_merging_in_steps_gives_the_same_as_at_once(self, values: list[dict[str, Any]]) -> None:
        layers = [layer_from(f"layer {i}", value) for i, value in enumerate(values)]

        def as_layer(merged: MergedJob) -> Layer:
            return Layer("merged", merged.job, origins=merged.origins)

        at_once = merge(layers)
        assert merge([as_layer(merge(layers[:2])), layers[2]]) == at_once
        assert merge([layers[0], as_layer(merge(layers[1:]))]) == at_once


class TestExtraArguments:
    def test_they_come_after_the_others(self) -> None:
        merged = append_args(merge([parsed(CONFIG)]), ["--fast"], "argument extra_args")
        assert merged.job["trainingInput"]["args"] == ["--epochs", "10", "--fast"]
        assert merged.origins["trainingInput.args"] == "config.yaml:11, argument extra_args"
        assert merged.origins["trainingInput.args[1]"] == "config.yaml:13"
        assert merged.origins["trainingInput.args[2]"] == "argument extra_args"

    def test_they_need_no_others(self) -> None:
        merged = append_args(merge([]), ["--fast"], "argument extra_args")
        assert merged.job == {"trainingInput": {"args": ["--fast"]}}
        assert merged.origins["trainingInput.args"] == "argument extra_args"

    def test_none_change_nothing(self) -> None:
        merged = merge([parsed(CONFIG)])
        assert append_args(merged, [], "argument extra_args") == merged

    def test_args_that_are_no_list_are_left_to_the_check(self) -> None:
        merged = merge([parsed("trainingInput:\n  args: --epochs\n")])
        assert append_args(merged, ["x"], "argument extra_args") == merged
        (violation,) = check(merged, complete=False)
        assert (violation.path, violation.source) == ("trainingInput.args", "config.yaml:2")


class TestParams:
    DECLARED: ClassVar = {"training_input": "", "workers": "workerCount", "args": "args"}

    def test_only_declared_params_are_read(self) -> None:
        params = {"workers": 2, "scale_tier": "CUSTOM", "serviceAccount": "evil"}
        layer = params_layer(params, self.DECLARED, DEFAULT_OVERRIDABLE)
        assert layer.values == {"trainingInput": {"workerCount": 2}}
        assert layer.origin("trainingInput.workerCount") == "param workers"

    def test_the_object_wins_over_single_fields(self) -> None:
        params = {"training_input": {"worker_count": 4, "region": "x"}, "workers": 2}
        layer = params_layer(params, self.DECLARED, DEFAULT_OVERRIDABLE)
        assert layer.values == {"trainingInput": {"workerCount": 4, "region": "x"}}
        assert layer.origin("trainingInput.workerCount") == "param training_input"

    @pytest.mark.parametrize("empty", [None, "", "  ", [], [""], ["", ""], {}])
    def test_an_empty_field_of_the_form_means_not_given(self, empty: Any) -> None:
        for name in self.DECLARED:
            assert params_layer({name: empty}, self.DECLARED, DEFAULT_OVERRIDABLE).values == {}

    def test_the_forms_empty_last_lines_are_no_arguments(self) -> None:
        layer = params_layer({"args": ["--a", "", "b", "", ""]}, self.DECLARED, ["args"])
        assert layer.values == {"trainingInput": {"args": ["--a", "", "b"]}}

    def test_a_path_that_is_not_overridable_is_refused_with_the_cure(self) -> None:
        params = {"training_input": {"serviceAccount": "a@b", "masterConfig": {"imageUri": "x"}}}
        found = violations_of(lambda: params_layer(params, self.DECLARED, DEFAULT_OVERRIDABLE))
        assert [v.path for v in found] == [
            "trainingInput.serviceAccount",
            "trainingInput.masterConfig.imageUri",
        ]
        assert str(found[0]) == (
            "param training_input: trainingInput.serviceAccount: a run's params may not set it. "
            "If whoever triggers this DAG may choose it, its author adds 'serviceAccount' to the "
            "operator's overridable list"
        )

    def test_a_misspelt_path_is_told_the_right_one(self) -> None:
        params = {"training_input": {"scaleTeir": "BASIC"}}
        found = violations_of(lambda: params_layer(params, self.DECLARED, DEFAULT_OVERRIDABLE))
        assert "Did you mean scaleTier?" in found[0].message

    def test_an_author_allows_a_path_by_naming_it(self) -> None:
        params = {"training_input": {"service_account": "a@b"}}
        layer = params_layer(params, self.DECLARED, ["service_account"])
        assert layer.values == {"trainingInput": {"serviceAccount": "a@b"}}

    def test_the_object_param_must_be_an_object(self) -> None:
        found = violations_of(lambda: params_layer({"training_input": "x"}, self.DECLARED, []))
        assert 'it must be an object, e.g. {"workerCount": 2}' in found[0].message

    def test_params_win_over_the_file(self) -> None:
        layer = params_layer({"workers": 2}, self.DECLARED, DEFAULT_OVERRIDABLE)
        merged = merge([parsed(CONFIG), layer])
        assert merged.job["trainingInput"]["workerCount"] == 2
        assert merged.origins["trainingInput.workerCount"] == "param workers"


class TestTheWholeJob:
    def test_it_goes_out_as_the_apis_json(self) -> None:
        file = parsed("trainingInput:\n  scale_tier: basic\n  args: [--epochs, 3]\n")
        body = finish(merge([file, layer_from("operator", whole_job())]))
        assert body == whole_job(scaleTier="BASIC", args=["--epochs", "3"])

    def test_all_violations_are_told_with_their_lines(self) -> None:
        file = parsed("trainingInput:\n  scaleTeir: BASIC\n  scheduling:\n    priority: high\n")
        found = violations_of(lambda: finish(merge([file, layer_from("operator", whole_job())])))
        assert {(v.path, v.source) for v in found} == {
            ("trainingInput.scaleTeir", "config.yaml:2"),
            ("trainingInput.scheduling.priority", "config.yaml:4"),
        }

    def test_fields_at_the_wrong_level_are_sent_to_the_right_one(self) -> None:
        text = "scale_tier: BASIC\nargs: [a]\ntrainingInput:\n  labels: {a: b}\n"
        assert [str(v) for v in check(merge([parsed(text)]), complete=False)] == [
            "config.yaml:1: scaleTier: unknown field here; it belongs in trainingInput.scaleTier",
            "config.yaml:2: args: unknown field here; it belongs in trainingInput.args",
            "config.yaml:4: trainingInput.labels: unknown field here; it belongs in labels",
        ]

    def test_an_unknown_section_at_the_top_is_told_with_its_line(self) -> None:
        file = parsed("trainingInput:\n  region: us-central1\nlabells:\n  team: a\n")
        assert [str(v) for v in check(merge([file]), complete=False)] == [
            "config.yaml:3: labells: unknown field; did you mean 'labels'?"
        ]

    def test_a_missing_field_is_written_in_no_line_of_its_section(self) -> None:
        merged = merge([parsed("labels:\n  team: a\ntrainingInput:\n  scaleTier: BASIC\n")])
        assert {"labels", "trainingInput"}.isdisjoint(merged.origins)
        assert ("trainingInput.region", "") in {(v.path, v.source) for v in check(merged)}

    def test_a_part_of_a_job_is_no_violation(self) -> None:
        merged = merge([parsed("trainingInput:\n  region: us-central1\n")])
        assert check(merged, complete=False) == []
        assert check(merged, complete=True) != []
