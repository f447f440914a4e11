from crossknn.search.calibration import ScoreCalibration as ScoreCalibration
from crossknn.search.results import Hit as Hit
from crossknn.search.results import Hits as Hits
from crossknn.search.searcher import Searcher as Searcher
