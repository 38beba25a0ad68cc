// The folder of an unfinished run: <output>.partial/ holds run.json (what makes two runs the same),
// layer_0007.h5 for every finished layer and the hidden states before one of them.
#pragma once
#include <filesystem>
#include <map>
#include <string>

namespace oscar {

class PartialRun {
 public:
  // Creates or reopens the folder. `fingerprint` names everything that changes the result. An output that
  // cannot be written (no such folder, a folder itself) is std::invalid_argument now, not after the run.
  PartialRun(const std::filesystem::path& output, const std::map<std::string, std::string>& fingerprint,
             bool resume, bool restart);
  ~PartialRun();  // removes a folder without a finished layer
  PartialRun(const PartialRun&) = delete;
  PartialRun& operator=(const PartialRun&) = delete;

  std::filesystem::path part(int layer) const;
  std::filesystem::path hidden(int layer) const;  // states before `layer`
  bool has_part(int layer) const;
  bool has_parts() const;                   // any
  int hidden_layer() const;                 // of the states that are there; 0: none
  void forget_hidden_but(int layer) const;  // older states are of no use
  void remove();                            // the run is whole
  const std::filesystem::path& path() const { return folder_; }

 private:
  std::filesystem::path folder_;
};

}  // namespace oscar
