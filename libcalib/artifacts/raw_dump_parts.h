// The parts that open_raw_dump and read_raw_layer are made of; for them alone.
#pragma once
#include <filesystem>

#include "formats/tensor.h"
#include "libcalib/artifacts/raw_dump.h"

namespace oscar {

struct RawFolder {
  std::filesystem::path directory;  // holds layer_<number>/
  std::filesystem::path work;       // of the staged pipeline that it belongs to; empty: of none
  bool work_given = false;          // the caller named the work directory, not the folder
};
// The folder of the dump that a user means by `given`. std::invalid_argument where there is none, with what
// to do about the pipeline's unconverted streams; std::runtime_error for a work directory without a layer
// yet.
RawFolder find_raw_folder(const std::filesystem::path& given);

// Compares what the staged pipeline says it dumped with what lies there: std::runtime_error for an unfinished
// stage. Of a folder given without its work directory what cannot be checked is noted.
void check_stage(const RawFolder& folder, const RawDump& dump, std::vector<std::string>& notes);

// (T, heads, D) of a float type, or std::runtime_error.
Tensor read_raw_rows(const std::filesystem::path& path);

}  // namespace oscar
