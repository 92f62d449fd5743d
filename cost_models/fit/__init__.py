"""From measured operator tables to a calibration: read them, hold some out, fit, and say how well it went."""

from cost_models.fit.aiconfigurator import read_aiconfigurator
from cost_models.fit.calibrate import CalibrationReport, FitOutcome, calibrate, save_calibration
from cost_models.fit.check import CheckReport, check_calibration
from cost_models.fit.forms import predict
from cost_models.fit.tables import OperatorTable, read_tables

__all__ = [
    "CalibrationReport",
    "CheckReport",
    "FitOutcome",
    "OperatorTable",
    "calibrate",
    "check_calibration",
    "predict",
    "read_aiconfigurator",
    "read_tables",
    "save_calibration",
]
