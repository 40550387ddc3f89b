#include "shardwise/train/job_command.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/base/check.h"
#include "shardwise/base/log.h"
#include "shardwise/config/env.h"
#include "shardwise/config/job.h"
#include "shardwise/io/live_files.h"
#include "shardwise/monitor/monitor.h"
#include "shardwise/train/trainer.h"

namespace shardwise::train {
namespace {

// Seconds between two writings of the report while the job runs.
constexpr double kReportSeconds = 30;

config::Job read_job(const std::string& path, const std::vector<std::string>& assignments,
                     const config::LaunchEnvironment& environment,
                     const config::Settings& settings) {
  std::vector<config::Override> overrides;
  for (const std::string& assignment : assignments) {
    const std::size_t sign = assignment.find('=');
    SW_CHECK_NE(sign, std::string::npos, assignment);
    overrides.push_back({assignment.substr(0, sign), assignment.substr(sign + 1)});
  }
  return config::load_job(path, overrides,
                          {.world_size = environment.world_size,
                           .world_size_origin = environment.present ? "WORLD_SIZE" : "one process",
                           .environment_timeout_seconds = settings.timeout_seconds});
}

// Everything that shows the run; other ranks than the first show nothing.
std::unique_ptr<monitor::Sink> make_sinks(const config::Job& job, int rank) {
  std::vector<std::unique_ptr<monitor::Sink>> sinks;
  if (rank == 0) {
    const std::filesystem::path folder = job.training.output;
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    SW_USER_CHECK(IoError, !error, "training.output: ", folder.string(), ": ", error.message());
    sinks.push_back(monitor::make_console_sink(1));
    sinks.push_back(monitor::make_jsonl_sink((folder / "log.jsonl").string()));
    sinks.push_back(monitor::make_report_sink((folder / "report.html").string(), kReportSeconds));
  }
  return monitor::make_fan_out(std::move(sinks));
}

void run_job(const config::Job& job, const config::LaunchEnvironment& environment,
             const config::Settings& settings, const StopSignal& stop) {
  const auto sink = make_sinks(job, environment.rank);
  auto rank = std::make_unique<Rank>(join_job(environment, settings, job.engine.config()));
  std::unique_ptr<Trainer> trainer;
  // After an error, leaving the group in order would wait for ranks that may be gone.
  const auto stay_in_the_group = [&] {
    [[maybe_unused]] const auto* leaked_trainer = trainer.release();
    [[maybe_unused]] const auto* leaked_rank = rank.release();
  };
  try {
    trainer = std::make_unique<Trainer>(job, *rank);
    trainer->run(*sink, stop);
  } catch (const ConfigError& error) {
    stay_in_the_group();
    SW_FAIL(ConfigError, job.path, ": ", error.what());
  } catch (...) {
    stay_in_the_group();
    throw;
  }
}

}  // namespace
}  // namespace shardwise::train

extern "C" int shardwise_train(const char* job_path, int count, const char* const* overrides) {
  using namespace shardwise;
  const train::StopSignal stop;
  io::name_file_on_bus_error();
  try {
    const auto environment = config::read_launch_environment();
    const auto settings = config::read_settings();
    const auto job = train::read_job(
        job_path, std::vector<std::string>(overrides, overrides + count), environment, settings);
    if (environment.rank == 0) {
      for (const std::string& note : job.engine.notes()) log_info(note);
    }
    train::run_job(job, environment, settings, stop);
    return 0;
  } catch (const Error& error) {
    log_error(error.what());
    return stop.received() != 0 ? 128 + stop.received() : exit_code(error.kind());
  } catch (const std::exception& error) {
    log_error(concat("internal error: ", error.what()));
    return exit_code(ErrorKind::kInternal);
  }
}
