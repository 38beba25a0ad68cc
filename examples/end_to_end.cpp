// The whole dataflow as one function; the four programs are contiguous cuts of it, and give the same numbers.
//
//   end_to_end MODEL.gguf TEXT OUT_DIR      writes stats.h5, rotations/ and clip.json, prints the
//   verification table
#include <omp.h>

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "formats/atomic_write.h"
#include "libcalib/artifacts/manifest.h"
#include "libcalib/artifacts/rotation_file.h"
#include "libcalib/clip.h"
#include "libcalib/fit.h"
#include "libcalib/report.h"
#include "libcalib/verify_rows.h"
#include "libdump/calibration_text.h"
#include "libdump/dump.h"

namespace fs = std::filesystem;
using namespace oscar;

static VerifyReport calibrate(const fs::path& model_file, const fs::path& text_file, const fs::path& out) {
  // 1 corpus, 2 tokens, 3 model
  DumpOptions run;
  run.threads = omp_get_max_threads();
  run.deterministic = true;
  SequenceOptions cut;
  cut.length = 1024;
  cut.probes = 4;
  const auto model = open_model(model_file, run.precision);
  const CalibrationText text = read_calibration_text(*model, {text_file}, {}, {}, cut, std::nullopt);

  // 4 forward, 5 statistics, 6 HDF5
  const Provenance provenance =
      describe(*model, text.tokenizer.get(), text.bos_policy, text.sequences, run, text.chat_format);
  dump(*model, text.sequences, provenance, run, out / "stats.h5", {});

  // 7 fit, 8 files
  const MergedStatistics statistics = read_merged({out / "stats.h5"});
  const FitResult fitted = fit({statistics.layers, {}}, parse_method("oscar"), {.threads = run.threads});
  make_directory(out / "rotations");
  write_rotations_pt(out / "rotations" / "k_rotation.pt", rotation_set(fitted.codes.k));
  write_rotations_pt(out / "rotations" / "v_rotation.pt", rotation_set(fitted.codes.v));
  // Read back: verification sees what a server would load, float32 rotations, not the float64 of the fit.
  RotationPair rotations{read_rotations(out / "rotations" / "k_rotation.pt"),
                         read_rotations(out / "rotations" / "v_rotation.pt")};

  // 9 clip, on the last probes
  const StatisticsReader reader(out / "stats.h5");
  const CodecInfo& codec = find_codec("sglang-prefill");
  ClipOptions search;
  search.windows = reader.header().windows;
  search.first_query = search.windows.sink + search.windows.recent;
  search.probes = {2, 3};
  const ClipReport clip = search_clip(reader, &rotations.k, &rotations.v, codec, 1, search, {});
  write_file(out / "clip.json", to_json(clip).dump(2) + '\n');

  // 10 verify, on the first probes
  VerifyOptions request;
  request.windows = search.windows;
  request.first_query = search.first_query;
  request.probes = {0, 1};
  const ScalarRows scalar{reader.header().layers, &codec};
  auto rows = scalar.baselines(kHandRatioK, kHandRatioV);
  rows.push_back(
      scalar.row("rotations", &rotations.k, &rotations.v, clip.model_k.best_ratio, clip.model_v.best_ratio));
  return verify(reader, rows, request, {});
}

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s MODEL.gguf TEXT OUT_DIR\n", argv[0]);
    return 2;
  }
  try {
    make_directory(argv[3]);
    std::cout << to_text(calibrate(argv[1], argv[2], argv[3]), /*per_layer=*/false);  // 11 report
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "end_to_end: %s\n", error.what());
    return 2;
  }
}
