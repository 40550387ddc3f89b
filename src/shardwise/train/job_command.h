// What the program `shardwise` calls in libshardwise.so to train. A C function: the program knows
// nothing of torch and loads the library at run time.
#pragma once

// Carries out the job file in this process, as the rank that the environment says. `overrides` are
// `count` strings "path=value". Errors are logged; returns the exit code.
extern "C" int shardwise_train(const char* job_path, int count, const char* const* overrides);
