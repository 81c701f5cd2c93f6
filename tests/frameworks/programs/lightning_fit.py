"""A fit of Lightning's: lightning_fit.py FOLDER. Prints its losses."""

import json
import sys
from typing import Any

import lightning
import torch


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.Linear(512, 256)
        )
        self.losses: list[float] = []

    def training_step(self, batch: Any, _: int) -> Any:
        loss = (self.net(batch[0]) - batch[0]).square().mean()
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    lightning.seed_everything(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 256))
    model = Model()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=sys.argv[1],
    )
    trainer.fit(model, torch.utils.data.DataLoader(data, batch_size=8))
    print(json.dumps({"losses": model.losses}), flush=True)


if __name__ == "__main__":
    main()
