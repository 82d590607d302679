#include "engine/runtime/engine_loop.h"
