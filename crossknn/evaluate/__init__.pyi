from crossknn.evaluate.comparison import Comparison as Comparison
from crossknn.evaluate.comparison import Contender as Contender
from crossknn.evaluate.comparison import compare as compare
from crossknn.evaluate.comparison import exact_truth as exact_truth
from crossknn.evaluate.datasets import Dataset as Dataset
from crossknn.evaluate.ground_truth import exact_scores as exact_scores
from crossknn.evaluate.report.page import write_report as write_report
