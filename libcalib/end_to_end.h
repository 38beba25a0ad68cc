// What a model loses when its cache is quantised: figures of the next token, teacher-forced. Here and not in
// libdump, which measures them, so that a report can hold them without LibTorch.
#pragma once
#include <cstdint>
#include <vector>

namespace oscar {

struct EndToEndFigures {
  double perplexity = 0;  // over counted positions with a next token; NaN where there is none
  double token_kl = 0;    // mean KL(p || p^) of the next-token distributions, nats; p: the exact model
  double top1 = 0;  // share of positions where both have the same most likely token (lowest id on a tie)
};
struct EndToEndBucket {
  int64_t first = 0, last = 0;  // positions [first, last)
  int64_t count = 0;            // of them, over all probes, that were counted
  EndToEndFigures figures{};
};
struct EndToEndResult {
  EndToEndFigures mean{};                 // over all counted positions of all probes
  std::vector<EndToEndBucket> buckets{};  // ascending; those without a counted position are absent
};

// Greedy generation by the model with a quantised cache beside the exact one, from the same prompts.
struct GenerationAgreement {
  int64_t prompt = 0, count = 0;  // tokens given, and generated, of every probe
  double agreement = 0;  // share of places with the same token; after the first other token by chance
  std::vector<int64_t> divergence{};  // per probe, tokens before the first that differs; `count`: none does
};

}  // namespace oscar
