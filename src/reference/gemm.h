#pragma once

#include <span>

#include "attention/mask.h"
#include "reference/matrix.h"

/// Dense products in double precision by plain loops. Each output element is one sum in ascending
/// order of the contracted index, so results do not depend on blocking, threads or instruction set.
namespace mxfa::reference {

Matrix<double> to_double(const Matrix<float>& values);
Matrix<double> transposed(const Matrix<double>& a);

/// A B: a [m, k], b [k, n] -> [m, n]. With `ranges` (one for each row of A) row i sums over the
/// columns of its range only: what lies outside is not read, so a NaN there does not matter.
Matrix<double> multiply_nn(const Matrix<double>& a, const Matrix<double>& b,
                           std::span<const attention::KeyRange> ranges = {});
/// A^T B: a [m, k], b [m, n] -> [k, n]. With `ranges` row i of A counts in its range only.
Matrix<double> multiply_tn(const Matrix<double>& a, const Matrix<double>& b,
                           std::span<const attention::KeyRange> ranges = {});
/// A B^T: a [m, k], b [n, k] -> [m, n].
Matrix<double> multiply_nt(const Matrix<double>& a, const Matrix<double>& b);

/// A linear layer: x [tokens, in], weight [out, in] -> Y = X W^T [tokens, out]. Runs on several
/// threads; the result does not depend on how many.
Matrix<double> linear_forward(const Matrix<double>& x, const Matrix<double>& weight);

struct LinearGradients {
  Matrix<double> dx;       ///< dY W, [tokens, in]
  Matrix<double> dweight;  ///< dY^T X, [out, in]
};
/// Gradients of linear_forward for dy [tokens, out].
LinearGradients linear_backward(const Matrix<double>& x, const Matrix<double>& weight,
                                const Matrix<double>& dy);

}  // namespace mxfa::reference
