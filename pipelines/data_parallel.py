"""One task learned by several workers together, through Ray Train's TorchTrainer.

For tasks too big for one trainer.  Every worker holds the whole module, takes its share of the rows of each
batch and adds gradients up with the others, so the batches are those of one trainer and the result is the same up to
round-off.  Starting a worker group costs seconds (on two busy cores about 20), so a single trainer is the
better choice until a task takes minutes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from workers.errors import ClusterError, LucaError

if TYPE_CHECKING:
    from pipelines.cluster import ActorPlan
    from workers.modeling.learner import Execution

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Group:
    """The workers that learn one task together.

    Attributes:
        workers: how many.
        cpus, gpus: what each reserves; with GPUs gradients travel by NCCL, else by Gloo.
        threads: threads of each, which also makes results repeatable.
        retries: fresh starts of the group after a worker was lost; learning is a pure function, so a
            fresh start gives the same result.
        environment: extra environment variables of the workers.
    """

    workers: int = 2
    cpus: float = 1.0
    gpus: float = 0.0
    threads: int = 1
    retries: int = 1
    environment: Mapping[str, str] | None = None


def run_together(work: Callable[[Execution], Result], group: Group) -> Result:
    """Run ``work`` on every worker with its rank, and return what rank 0 made of it.

    Raises:
        LucaError: what ``work`` itself raised.
        ClusterError: the workers could not be started or were lost too often.
    """
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    def loop() -> Result | None:
        import torch
        import torch.distributed as distributed
        from ray.train import get_context
        from ray.train.torch import get_device

        from workers.modeling.learner import Execution

        torch.set_num_threads(group.threads)
        torch.set_flush_denormal(True)

        def add_up(gradient: torch.Tensor) -> None:
            distributed.all_reduce(gradient)

        context = get_context()
        execution = Execution(
            device=str(get_device()) if group.gpus else "cpu",
            rank=context.get_world_rank(),
            world=context.get_world_size(),
            reduce=add_up,
        )
        result = work(execution)
        return result if execution.rank == 0 else None

    resources = {"CPU": group.cpus, **({"GPU": group.gpus} if group.gpus else {})}
    threads = {"OMP_NUM_THREADS": str(group.threads), **(group.environment or {})}
    with tempfile.TemporaryDirectory(prefix="luca-train-") as folder:
        trainer = TorchTrainer(
            loop,
            torch_config=TorchConfig(backend="nccl" if group.gpus else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=group.workers,
                use_gpu=bool(group.gpus),
                resources_per_worker=resources,
            ),
            run_config=RunConfig(
                storage_path=folder,
                failure_config=FailureConfig(max_failures=group.retries),
                worker_runtime_env={"env_vars": threads},
            ),
        )
        try:
            fitted = trainer.fit()
        except TrainingFailedError as error:
            raise _cause(error, group) from error
    value: Result = fitted.return_value
    return value


def _cause(error: Exception, group: Group) -> LucaError:
    """The learner's own sentence when it raised one, else a sentence about the workers."""
    failures = getattr(error, "worker_failures", {})
    for failure in failures.values():
        for candidate in (failure, getattr(failure, "cause", None), failure.__cause__):
            if isinstance(candidate, LucaError):
                return candidate
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ClusterError(
        f"{group.workers} workers could not learn a task together after {group.retries + 1} starts: "
        f"{lines[-1][:300] if lines else type(error).__name__}"
    )


def trainer_class_for(plan: ActorPlan) -> Any:
    """The trainer actor's class: the usual one, or one whose tasks are learned by several workers."""
    from workers.trainer import trainer_class

    learners = plan.learners
    if learners is None:
        return trainer_class()
    return data_parallel_trainer_class(
        Group(
            workers=learners.count // plan.trainers.count,
            cpus=learners.num_cpus,
            gpus=learners.num_gpus,
            threads=learners.threads,
        )
    )


def data_parallel_trainer_class(group: Group) -> Any:
    """A Ray actor class with the interface of the trainer actor, whose tasks are learned by ``group``.

    The actor itself only waits, so it needs no CPU; features are read from storage by the workers.
    """
    import ray

    from workers.trainer import TrainerImpl

    class DataParallelTrainer(TrainerImpl):
        """Learns each task on several workers together."""

        def __init__(self, storage: str, *, threads: int) -> None:
            super().__init__(storage, threads=threads)
            self._storage = storage

        def learn(
            self,
            request: Any,
            whitening: Any = None,
            previous_head: Any = None,
            keys: tuple[Any, ...] = (),  # noqa: ARG002
            *tables: Any,  # noqa: ARG002
        ) -> Any:
            """Learn a task; the same three values as a single trainer."""
            info, learned = run_together(
                _TaskWork(self._storage, request, whitening, previous_head), group
            )
            return info, learned, learned.head

    return ray.remote(max_restarts=-1, max_task_retries=-1)(DataParallelTrainer)


@dataclass(frozen=True)
class _TaskWork:
    """Learning one task from storage: what every worker of the group does."""

    storage: str
    request: Any
    whitening: Any
    previous_head: Any

    def __call__(self, execution: Execution) -> Any:
        from workers.storage.features import FeatureCache
        from workers.storage.filesystem import Storage
        from workers.task_learning import learn_task

        return learn_task(
            FeatureCache(Storage.open(self.storage)),
            self.request,
            whitening=self.whitening,
            previous_head=self.previous_head,
            execution=execution,
        )
