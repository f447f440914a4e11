from crossknn.matching.matcher import match as match
from crossknn.matching.matches import Match as Match
from crossknn.matching.matches import Matches as Matches
from crossknn.matching.recall_estimate import RecallEstimate as RecallEstimate
