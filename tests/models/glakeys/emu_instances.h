FOVEA_INSTANCE({.dtype = FOVEA_BF16, .d = 64, .stages = 6})
FOVEA_INSTANCE({.dtype = FOVEA_BF16, .d = 128, .stages = 6})
