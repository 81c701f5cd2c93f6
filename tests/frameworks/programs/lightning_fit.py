"""Training by Lightning's Trainer.fit(): lightning_fit.py FOLDER. Prints its losses."""

import json
import sys
from typing import Any

import lightning
import torch
from resting import figures, on_gpu, rest


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

    def on_train_epoch_end(self) -> None:
        rest(self)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    lightning.seed_everything(0)
    data = torch.utils.data.TensorDataset(torch.randn(64, 256))
    model = Model()
    on_gpu(model)
    trainer = lightning.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=sys.argv[1],
    )
    batches = torch.utils.data.DataLoader(data, batch_size=8, pin_memory=torch.cuda.is_available())
    trainer.fit(model, batches)
    print(json.dumps({"losses": model.losses} | figures(model)), flush=True)


if __name__ == "__main__":
    main()
