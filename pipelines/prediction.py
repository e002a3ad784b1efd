"""Predictions from a bank version: features or images in, class, task and confidences out.  Plain torch, no Ray.

The same predictor as the evaluators', on features made by the same backbone, transform and dtype, so a sample gets
here what it got in the run's own predictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pipelines.pictures import PictureDecoder, Unreadable
from pipelines.recorded_backbone import READY_FEATURES, load_recorded
from pipelines.unlabelled import FeatureBatch, ImageFiles, Input, PictureBatch, TableRows
from workers.errors import BackboneError, DataError, SettingsError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from workers.modeling.backbone import Backbone
    from workers.modeling.evaluation_settings import EvaluationSettings
    from workers.storage.bank import BankVersion


@dataclass(frozen=True)
class Predicted:
    """Predictions for n samples.

    Attributes:
        class_index: index into ``class_names``, int64 [n].
        task_index: index into ``task_names`` of the most likely task, int64 [n].
        confidence: p(predicted class | sample), float64 [n].
        routing_confidence: p(most likely task | sample), float64 [n].
    """

    class_index: Tensor
    task_index: Tensor
    confidence: Tensor
    routing_confidence: Tensor
    class_names: tuple[str, ...]
    task_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.class_index)

    @property
    def classes(self) -> list[str]:
        """The predicted class of each sample by name."""
        return [self.class_names[index] for index in self.class_index.tolist()]

    @property
    def tasks(self) -> list[str]:
        """The most likely task of each sample by name."""
        return [self.task_names[index] for index in self.task_index.tolist()]


class Model:
    """A bank version that predicts; made by :meth:`orchestrator.api.OpenBank.load`.

    Args:
        version: the version.
        router: name of the router; must be usable without knowing the task.
        settings: combination and router options.
        backbone, weights: where the recorded backbone is found when its name alone does not say.
        device: of the backbone: "cpu", "cuda" or "auto".
        max_pixels: larger pictures are refused.

    Raises:
        SettingsError: there is no such router, or it needs the true task.
        BankError: the version lacks what the router needs.
    """

    def __init__(
        self,
        version: BankVersion,
        *,
        router: str,
        settings: EvaluationSettings,
        backbone: str | None = None,
        weights: str | None = None,
        device: str = "auto",
        max_pixels: int | None = None,
    ) -> None:
        from workers.loading import TensorLoader
        from workers.modeling.images import MAX_PIXELS
        from workers.modeling.predictor import Predictor
        from workers.modeling.routers import ROUTERS

        kind = ROUTERS.get(router)
        if kind is not None and kind.Options.upper_bound:
            others = ", ".join(
                name for name, each in ROUTERS.items() if not each.Options.upper_bound
            )
            raise SettingsError(
                f"router '{router}' is told the true task of every sample, which a prediction does not know: "
                f"choose one of {others}"
            )
        needs_statistics = kind is None or kind.evidence == "statistics"
        bank = TensorLoader().load(version, statistics=needs_statistics)
        self.version = version
        self.router = router
        self.class_names = bank.class_names
        self.task_names = tuple(task.name for task in bank.tasks)
        self.width = bank.width
        self._predictor = Predictor(bank, settings, router)
        self._dtype: str = version.settings.get("feature_dtype", "float32")
        self._backbone_name, self._weights, self._device = backbone, weights, device
        self._max_pixels = MAX_PIXELS if max_pixels is None else max_pixels

    @property
    def order_dependent(self) -> bool:
        """Whether a prediction depends on the other samples of its batch, as with "batch_entropy"."""
        return self._predictor.router.Options.order_dependent

    @property
    def reads_images(self) -> bool:
        """Whether the bank has a backbone; without one it takes ready features only."""
        return bool(self.version.backbone["name"] != READY_FEATURES)

    @cached_property
    def backbone(self) -> Backbone:
        """The bank's own backbone, loaded when it is first needed.

        Raises:
            BackboneError: it cannot be had, or it has another fingerprint than the bank recorded.
        """
        return load_recorded(
            self.version.backbone,
            name=self._backbone_name,
            weights=self._weights,
            device=self._device,
        )

    def __call__(self, batch: Tensor | Sequence[Any]) -> Predicted:
        """Predict a batch of features or images.

        Args:
            batch: features [n, d] of any float type; or pictures of the backbone's input size [n, 3, h, w], uint8 or
                float in 0..1 (not normalised); or a list of PIL images, encoded bytes or paths, of any size.

        Raises:
            DataError: the batch does not fit the bank, an image cannot be read, or values are not finite.
            BackboneError: the bank's backbone cannot be had.
        """
        import torch

        if not isinstance(batch, torch.Tensor):
            return self.predict_features(self.embed(self._decoder.pixels(batch)))
        if batch.ndim == 2:
            return self.predict_features(batch)
        return self.predict_features(self._embed_pictures(batch))

    def predict_features(self, features: Tensor) -> Predicted:
        """Predict from raw features [n, d]; they are rounded to the dtype the bank was learned on.

        Raises:
            DataError: not [n, width], or not finite.
        """
        import torch

        kept = features.detach().to("cpu", getattr(torch, self._dtype)).to(torch.float32)
        made = self._predictor.predict(kept)
        return Predicted(
            class_index=made.class_index,
            task_index=made.task_index,
            confidence=made.confidence,
            routing_confidence=made.routing_confidence,
            class_names=self.class_names,
            task_names=self.task_names,
        )

    def embed(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Features float32 [n, d] of uint8 pictures [n, h, w, 3] of the backbone's input size."""
        import torch

        try:
            return self.backbone.embed(pixels).cpu()
        except torch.cuda.OutOfMemoryError as error:
            raise BackboneError(
                f"{len(pixels)} pictures at once do not fit into the GPU's memory: use a smaller batch (--batch-size)"
            ) from error

    def predict_inputs(
        self,
        inputs: Iterable[Input],
        *,
        batch_size: int,
        unreadable: Unreadable,
    ) -> Iterator[tuple[list[str], Predicted]]:
        """Predict what :func:`pipelines.unlabelled.find_inputs` found: ids and predictions, batch by batch.

        Raises:
            DataError: features do not fit the bank, or ``unreadable`` stops at an image.
            BackboneError: there are images, and the bank's backbone cannot be had.
        """
        for item in inputs:
            self.check_input(item)
            batches = item.batches(batch_size)
            if item.kind == "features":
                for batch in batches:
                    assert isinstance(batch, FeatureBatch)
                    yield batch.ids, self._predict_rows(batch)
            else:
                for ids, pixels in self._decoder.stream(_pictures(batches), unreadable):
                    yield ids, self.predict_features(self.embed(pixels))

    def check_input(self, item: Input) -> None:
        """Refuse, before anything is read, what this bank cannot predict.

        Raises:
            DataError: images for a bank of ready features, or features of another width.
        """
        if item.kind == "images" and not self.reads_images:
            name = item.names[0] if isinstance(item, ImageFiles) else item.name
            raise DataError(
                f"{name!r} is an image, and bank '{self.version.bank.name}' was learned on ready features of width "
                f"{self.width}: give Parquet or Arrow files with a column of such features"
            )
        if isinstance(item, TableRows) and item.width not in (None, self.width):
            raise DataError(self._other_width(item.name, item.width))

    @cached_property
    def _decoder(self) -> PictureDecoder:
        return PictureDecoder(self.backbone.transform, self._max_pixels)

    def _predict_rows(self, batch: FeatureBatch) -> Predicted:
        import numpy as np
        import torch

        if batch.features.shape[1] != self.width:
            raise DataError(self._other_width(batch.where, batch.features.shape[1]))
        return self.predict_features(torch.from_numpy(np.array(batch.features)))

    def _other_width(self, where: str, width: int | None) -> str:
        return (
            f"{where!r} holds features of width {width}, and bank '{self.version.bank.name}' was learned on width "
            f"{self.width} ({self.version.backbone['name']}): make features with the backbone of the bank"
        )

    def _embed_pictures(self, pictures: Tensor) -> Tensor:
        """Features of pictures [n, 3, h, w], uint8 or float in 0..1."""
        import torch

        transform = self.backbone.transform
        expected = (3, transform.height, transform.width)
        if pictures.ndim != 4 or tuple(pictures.shape[1:]) != expected:
            raise DataError(
                f"a batch of shape {list(pictures.shape)} is neither features [n, {self.width}] nor pictures "
                f"[n, 3, {transform.height}, {transform.width}]; pictures of other sizes can be given as a list of "
                "PIL images or paths"
            )
        if pictures.dtype == torch.uint8:
            return self.embed(pictures.permute(0, 2, 3, 1).contiguous().cpu().numpy())
        if len(pictures) and not (float(pictures.min()) >= 0 and float(pictures.max()) <= 1):
            raise DataError(
                f"pictures as floats are in 0..1, found {float(pictures.min()):.4g} to {float(pictures.max()):.4g}: "
                "give them before normalisation, which the model does itself"
            )
        mean = torch.tensor(transform.mean).view(1, 3, 1, 1)
        std = torch.tensor(transform.std).view(1, 3, 1, 1)
        return self.backbone.features((pictures.to(torch.float32).cpu() - mean) / std).cpu()


def _pictures(batches: Iterable[PictureBatch | FeatureBatch]) -> Iterator[PictureBatch]:
    for batch in batches:
        assert isinstance(batch, PictureBatch)
        yield batch
