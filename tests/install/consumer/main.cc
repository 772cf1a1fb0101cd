#include <mxfa/mxfa.h>

#include <cstdio>
#include <vector>

int main() {
  std::vector<unsigned short> data(2 * 128 * 4 * 64);
  const mxfa::TensorView view = mxfa::make_tensor(data.data(), mxfa::DType::kBF16, {2, 128, 4, 64});
  std::puts(mxfa::describe(view).c_str());
  try {
    mxfa::make_tensor(data.data(), mxfa::DType::kBF16, {-1});
  } catch (const mxfa::Error&) {
    return 0;  // the exception type crosses the library's border
  }
  return 1;
}
