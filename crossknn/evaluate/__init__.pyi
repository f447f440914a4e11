from crossknn.evaluate.compare import Contender as Contender
from crossknn.evaluate.compare import compare as compare
from crossknn.evaluate.compare import exact_truth as exact_truth
from crossknn.evaluate.comparison import Comparison as Comparison
from crossknn.evaluate.datasets import Dataset as Dataset
from crossknn.evaluate.ground_truth import exact_scores as exact_scores
from crossknn.evaluate.report.write import write_report as write_report
