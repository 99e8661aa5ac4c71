"""The messages of the ML v1 Job: every field, as typed, strict shapes.

Attributes have the API's snake_case names, keys on the wire its camelCase ones; both are read.  No
field is required here, since a config file may be partial: :mod:`.job_rules` says what a whole job
needs.  ``Output`` shapes are kept for completeness and for the contract test; what services answer
stays a plain dict, because they may know newer fields.

Source: ML v1 discovery, revision 20251213.  Fields and values that are only in gcloud 528's own
messages (``NasSpec``, ``ExplanationInput``, ``resilientToWorkerRestart`` ...) are listed in
``tests/contract/test_discovery.py``.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from airflow_aiptraining.core.job_scalars import (
    AcceleratorType,
    Algorithm,
    Bool,
    Bytes,
    Double,
    Duration,
    ExplanationDataFormat,
    Framework,
    Goal,
    Int32,
    Int64,
    MultiTrialAlgorithm,
    OneShotAlgorithm,
    ParameterScale,
    ParameterType,
    PredictionDataFormat,
    ScaleTier,
    State,
    Strategy,
    Text,
    Timestamp,
)


class Message(BaseModel):
    """Base of all shapes: strict about keys, read by either of their spellings."""

    model_config = ConfigDict(
        extra="forbid",
        alias_generator=to_camel,
        populate_by_name=True,
        # modelName, modelFlops ... are the API's words.
        protected_namespaces=(),
        hide_input_in_errors=True,
    )


class AcceleratorConfig(Message):
    """Accelerators of each machine of a role."""

    count: Int64 | None = None
    type: AcceleratorType | None = None


class DiskConfig(Message):
    """Boot disk of each machine of a role; the service's default is 100 GB pd-ssd."""

    boot_disk_size_gb: Int32 | None = None
    boot_disk_type: Text | None = None


class EncryptionConfig(Message):
    """Customer-managed key for what the job creates."""

    kms_key_name: Text | None = None


class ReplicaConfig(Message):
    """Image, accelerators and disk of one role."""

    accelerator_config: AcceleratorConfig | None = None
    container_args: list[Text] | None = None
    container_command: list[Text] | None = None
    disk_config: DiskConfig | None = None
    image_uri: Text | None = None
    tpu_tf_version: Text | None = None


class ParameterSpec(Message):
    """One hyperparameter to tune."""

    categorical_values: list[Text] | None = None
    discrete_values: list[Double] | None = None
    max_value: Double | None = None
    min_value: Double | None = None
    parameter_name: Text | None = None
    scale_type: ParameterScale | None = None
    type: ParameterType | None = None


class HyperparameterSpec(Message):
    """What a tuning job searches, and how."""

    algorithm: Algorithm | None = None
    enable_trial_early_stopping: Bool | None = None
    goal: Goal | None = None
    hyperparameter_metric_tag: Text | None = None
    max_failed_trials: Int32 | None = None
    max_parallel_trials: Int32 | None = None
    max_trials: Int32 | None = None
    params: list[ParameterSpec] | None = None
    resume_previous_job_id: Text | None = None


class NasSpecMultiTrialAlgorithmSpec(Message):
    """Neural architecture search over many trials."""

    initial_ignored_model_count: Int32 | None = None
    max_failed_nas_trials: Int32 | None = None
    max_nas_trials: Int32 | None = None
    max_parallel_nas_trials: Int32 | None = None
    multi_trial_algorithm: MultiTrialAlgorithm | None = None
    nas_target_reward_metric: Text | None = None


class NasSpecOneShotAlgorithmSpec(Message):
    """Neural architecture search in one trial."""

    one_shot_algorithm: OneShotAlgorithm | None = None


class NasSpec(Message):
    """Neural architecture search (in gcloud's messages, not in the discovery document)."""

    multi_trial_algorithm_spec: NasSpecMultiTrialAlgorithmSpec | None = None
    one_shot_algorithm_spec: NasSpecOneShotAlgorithmSpec | None = None
    previous_nas_job_id: Text | None = None
    search_space_spec: Text | None = None


class Scheduling(Message):
    """How long the job may wait and run, and before which others."""

    max_running_time: Duration | None = None
    max_wait_time: Duration | None = None
    priority: Int32 | None = None
    resilient_to_worker_restart: Bool | None = None
    strategy: Strategy | None = None


class TrainingInput(Message):
    """What runs, on which machines, with which arguments."""

    args: list[Text] | None = None
    enable_web_access: Bool | None = None
    encryption_config: EncryptionConfig | None = None
    evaluator_config: ReplicaConfig | None = None
    evaluator_count: Int64 | None = None
    evaluator_type: Text | None = None
    hyperparameters: HyperparameterSpec | None = None
    job_dir: Text | None = None
    master_config: ReplicaConfig | None = None
    master_type: Text | None = None
    nas_job_spec: NasSpec | None = None
    network: Text | None = None
    package_uris: list[Text] | None = None
    parameter_server_config: ReplicaConfig | None = None
    parameter_server_count: Int64 | None = None
    parameter_server_type: Text | None = None
    python_module: Text | None = None
    python_version: Text | None = None
    region: Text | None = None
    runtime_version: Text | None = None
    scale_tier: ScaleTier | None = None
    scheduling: Scheduling | None = None
    service_account: Text | None = None
    use_chief_in_tf_config: Bool | None = None
    worker_config: ReplicaConfig | None = None
    worker_count: Int64 | None = None
    worker_type: Text | None = None


class BuiltInAlgorithmOutput(Message):
    """Result of a built-in algorithm."""

    framework: Text | None = None
    model_path: Text | None = None
    python_version: Text | None = None
    runtime_version: Text | None = None


class HyperparameterMetric(Message):
    """One observed value of the tuned metric."""

    objective_value: Double | None = None
    training_step: Int64 | None = None


class HyperparameterOutput(Message):
    """One trial of a tuning job."""

    all_metrics: list[HyperparameterMetric] | None = None
    built_in_algorithm_output: BuiltInAlgorithmOutput | None = None
    end_time: Timestamp | None = None
    final_metric: HyperparameterMetric | None = None
    hyperparameters: dict[str, Text] | None = None
    is_trial_stopped_early: Bool | None = None
    start_time: Timestamp | None = None
    state: State | None = None
    trial_id: Text | None = None
    web_access_uris: dict[str, Text] | None = None


class NasParameterMetric(Message):
    """One observed value in an architecture search."""

    metrics: dict[str, Double] | None = None
    model_flops: Double | None = None
    objective_value: Double | None = None
    training_step: Int64 | None = None


class MultiTrialJobOutput(Message):
    """One trial of an architecture search."""

    all_metrics: list[NasParameterMetric] | None = None
    end_time: Timestamp | None = None
    final_metric: NasParameterMetric | None = None
    nas_params_str: Text | None = None
    start_time: Timestamp | None = None
    state: State | None = None
    trial_id: Text | None = None


class MultiTrialJobOutputs(Message):
    """Trials of an architecture search."""

    multi_trial_job_output: list[MultiTrialJobOutput] | None = None


class NasJobOutput(Message):
    """Result of an architecture search."""

    multi_trial_job_outputs: MultiTrialJobOutputs | None = None


class TrainingOutput(Message):
    """Result of a training job."""

    built_in_algorithm_output: BuiltInAlgorithmOutput | None = None
    completed_trial_count: Int64 | None = None
    consumed_ml_units: Double | None = Field(default=None, alias="consumedMLUnits")
    hyperparameter_metric_tag: Text | None = None
    is_built_in_algorithm_job: Bool | None = None
    is_hyperparameter_tuning_job: Bool | None = None
    nas_job_output: NasJobOutput | None = None
    trials: list[HyperparameterOutput] | None = None
    web_access_uris: dict[str, Text] | None = None


class PredictionInput(Message):
    """Input of a batch prediction job, which this package doesn't submit."""

    accelerator: AcceleratorConfig | None = None
    batch_size: Int64 | None = None
    data_format: PredictionDataFormat | None = None
    framework: Framework | None = None
    initial_worker_count: Int64 | None = None
    input_paths: list[Text] | None = None
    max_worker_count: Int64 | None = None
    model_name: Text | None = None
    output_data_format: PredictionDataFormat | None = None
    output_path: Text | None = None
    region: Text | None = None
    runtime_version: Text | None = None
    signature_name: Text | None = None
    tags_override: list[Text] | None = None
    uri: Text | None = None
    version_name: Text | None = None
    worker_type: Text | None = None


class PredictionOutput(Message):
    """Result of a batch prediction job."""

    error_count: Int64 | None = None
    node_hours: Double | None = None
    output_path: Text | None = None
    prediction_count: Int64 | None = None


class AblationAttribution(Message):
    """Explains by leaving features out."""

    num_feature_interactions: Int32 | None = None


class IntegratedGradientsAttribution(Message):
    """Explains by integrated gradients."""

    num_integral_steps: Int32 | None = None


class SaabasAttribution(Message):
    """Explains tree ensembles by Saabas' values."""


class SampledShapleyAttribution(Message):
    """Explains by sampled Shapley values."""

    num_paths: Int32 | None = None


class TreeShapAttribution(Message):
    """Explains tree ensembles by Shapley values."""


class XraiAttribution(Message):
    """Explains images by regions."""

    num_integral_steps: Int32 | None = None


class ExplanationConfig(Message):
    """How predictions are explained."""

    ablation_attribution: AblationAttribution | None = None
    integrated_gradients_attribution: IntegratedGradientsAttribution | None = None
    saabas_attribution: SaabasAttribution | None = None
    sampled_shapley_attribution: SampledShapleyAttribution | None = None
    tree_shap_attribution: TreeShapAttribution | None = None
    xrai_attribution: XraiAttribution | None = None


class ExplanationInput(Message):
    """Input of a batch explanation job, which this package doesn't submit."""

    accelerator: AcceleratorConfig | None = None
    batch_size: Int64 | None = None
    data_format: ExplanationDataFormat | None = None
    explanation_config: ExplanationConfig | None = None
    framework: Framework | None = None
    initial_worker_count: Int64 | None = None
    input_paths: list[Text] | None = None
    max_worker_count: Int64 | None = None
    model_name: Text | None = None
    output_bigquery_table: Text | None = None
    output_data_format: ExplanationDataFormat | None = None
    region: Text | None = None
    runtime_version: Text | None = None
    signature_name: Text | None = None
    tags_override: list[Text] | None = None
    uri: Text | None = None
    version_name: Text | None = None
    worker_type: Text | None = None


class ExplanationOutput(Message):
    """Result of a batch explanation job."""

    error_count: Int64 | None = None
    explanation_count: Int64 | None = None
    node_hours: Double | None = None
    output_bigquery_table: Text | None = None


class Job(Message):
    """A training job: what is asked of the service, and what became of it."""

    create_time: Timestamp | None = None
    end_time: Timestamp | None = None
    error_message: Text | None = None
    etag: Bytes | None = None
    explanation_input: ExplanationInput | None = None
    explanation_output: ExplanationOutput | None = None
    job_id: Text | None = None
    job_position: Int64 | None = None
    labels: dict[str, Text] | None = None
    prediction_input: PredictionInput | None = None
    prediction_output: PredictionOutput | None = None
    start_time: Timestamp | None = None
    state: State | None = None
    training_input: TrainingInput | None = None
    training_output: TrainingOutput | None = None
