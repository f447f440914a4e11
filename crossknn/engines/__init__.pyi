from crossknn.engines.ray import RayEngine as RayEngine
