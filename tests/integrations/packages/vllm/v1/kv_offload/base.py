from dataclasses import dataclass


class OffloadingWorker: ...


@dataclass
class TransferResult:
    job_id: int
    success: bool
    transfer_size: int | None = None
    transfer_time: float | None = None
