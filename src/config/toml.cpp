// Compiles toml++ once, instead of in every file that includes it.
#define TOML_IMPLEMENTATION
#include "config/table_reader.hpp"
