// Five LayerNorm forward passes, one for each step of the ladder that layernorm.py tells of; compiled by NVRTC.
//
// x has M rows of N elements, at any strides; y, weight and bias are dense, mean and rstd have one float32 a row.
// weight and bias may be null. Arithmetic is in float32, indices have 64 bits. BLOCK is a multiple of 32, up to 1024.
// Every kernel strides over the rows, since a grid is bounded, and over the columns, since N may be anything.

#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace cg = cooperative_groups;

using Index = long long;
constexpr int WARP = 32;

// How many running sums a thread keeps: no load waits for another, and even one warp has the 128 of a blocked sum.
constexpr int RUNS = 4;

struct Sums {
  float x, squares;
};

// The sum of term(i) over i = first, first + step, … below N, in RUNS running sums.
template <typename Term>
__device__ float sum(Index first, Index step, Index N, Term term) {
  float run[RUNS] = {};
#pragma unroll 1
  for (Index i = first; i < N; i += RUNS * step) {
#pragma unroll
    for (int j = 0; j < RUNS; ++j) {
      if (i + j * step < N) run[j] += term(i + j * step);
    }
  }
  return (run[0] + run[1]) + (run[2] + run[3]);
}

// Σx and Σx² in one pass: what E[x²] − E[x]² is made of.
template <typename T>
__device__ Sums sums(const T* x, Index first, Index step, Index N, Index stride) {
  float run[RUNS] = {}, square[RUNS] = {};
#pragma unroll 1
  for (Index i = first; i < N; i += RUNS * step) {
#pragma unroll
    for (int j = 0; j < RUNS; ++j) {
      if (i + j * step < N) {
        const float value = static_cast<float>(x[(i + j * step) * stride]);
        run[j] += value;
        square[j] += value * value;
      }
    }
  }
  return {(run[0] + run[1]) + (run[2] + run[3]), (square[0] + square[1]) + (square[2] + square[3])};
}

// Not clamped at 0: where the difference cancels to less, a clamp would hide the NaN and leave the variance as wrong.
__device__ float one_pass_rstd(Sums total, float mean, Index N, double eps) {
  return rsqrtf(total.squares / N - mean * mean + static_cast<float>(eps));
}

template <typename W>
__device__ float affine(float xhat, const W* weight, const W* bias, Index i) {
  if (weight) xhat *= static_cast<float>(weight[i]);
  if (bias) xhat += static_cast<float>(bias[i]);
  return xhat;
}

// x̂, weight and bias for one thread's share of a row. x is read for the last time and y is not read at all, so both
// are marked to leave the caches first, which weight and bias are to stay in.
template <typename T, typename W>
__device__ void normalize(const T* in, T* out, const W* weight, const W* bias, float mean, float rstd, Index first,
                          Index step, Index N, Index stride) {
#pragma unroll 4
  for (Index i = first; i < N; i += step) {
    const float xhat = (static_cast<float>(__ldcs(in + i * stride)) - mean) * rstd;
    __stcs(out + i, static_cast<T>(affine(xhat, weight, bias, i)));
  }
}

// 1. A thread a row: three loops, one running sum each.
template <typename T, typename W, int BLOCK>
__global__ void __launch_bounds__(BLOCK)
    thread_a_row(const T* __restrict__ x, T* __restrict__ y, const W* __restrict__ weight, const W* __restrict__ bias,
                 float* __restrict__ mean, float* __restrict__ rstd, Index M, Index N, Index row_stride,
                 Index col_stride, double eps) {
  const Index threads = static_cast<Index>(gridDim.x) * BLOCK;
  for (Index row = static_cast<Index>(blockIdx.x) * BLOCK + threadIdx.x; row < M; row += threads) {
    const T* in = x + row * row_stride;
    float total = 0.0f;
    for (Index i = 0; i < N; ++i) total += static_cast<float>(in[i * col_stride]);
    const float m = total / N;
    float squares = 0.0f;
    for (Index i = 0; i < N; ++i) {
      const float centred = static_cast<float>(in[i * col_stride]) - m;
      squares += centred * centred;
    }
    const float r = 1.0f / sqrtf(squares / N + static_cast<float>(eps));
    for (Index i = 0; i < N; ++i) {
      const float xhat = (static_cast<float>(in[i * col_stride]) - m) * r;
      y[row * N + i] = static_cast<T>(affine(xhat, weight, bias, i));
    }
    mean[row] = m;
    rstd[row] = r;
  }
}

// The sum of a block's values by halving, for every thread. The upper half is the smaller one where a width is odd, and
// the last barrier lets `shared` be used again.
template <int BLOCK>
__device__ float block_sum(float value, float* shared) {
  shared[threadIdx.x] = value;
  __syncthreads();
  for (int width = BLOCK; width > 1;) {
    const int half = (width + 1) / 2;
    if (threadIdx.x < width - half) shared[threadIdx.x] += shared[threadIdx.x + half];
    width = half;
    __syncthreads();
  }
  const float total = shared[0];
  __syncthreads();
  return total;
}

// 2. Three kernels: a block a row for the mean, a block a row for rstd, and a thread an element.
template <typename T, int BLOCK>
__global__ void __launch_bounds__(BLOCK)
    mean_of_rows(const T* __restrict__ x, float* __restrict__ mean, Index M, Index N, Index row_stride,
                 Index col_stride) {
  __shared__ float shared[BLOCK];
  for (Index row = blockIdx.x; row < M; row += gridDim.x) {
    const T* in = x + row * row_stride;
    const float share = sum(threadIdx.x, BLOCK, N, [=](Index i) { return static_cast<float>(in[i * col_stride]); });
    const float total = block_sum<BLOCK>(share, shared);
    if (threadIdx.x == 0) mean[row] = total / N;
  }
}

template <typename T, int BLOCK>
__global__ void __launch_bounds__(BLOCK)
    rstd_of_rows(const T* __restrict__ x, const float* __restrict__ mean, float* __restrict__ rstd, Index M, Index N,
                 Index row_stride, Index col_stride, double eps) {
  __shared__ float shared[BLOCK];
  for (Index row = blockIdx.x; row < M; row += gridDim.x) {
    const T* in = x + row * row_stride;
    const float m = mean[row];
    const float share = sum(threadIdx.x, BLOCK, N, [=](Index i) {
      const float centred = static_cast<float>(in[i * col_stride]) - m;
      return centred * centred;
    });
    const float total = block_sum<BLOCK>(share, shared);
    if (threadIdx.x == 0) rstd[row] = 1.0f / sqrtf(total / N + static_cast<float>(eps));
  }
}

// The rows along one axis of the grid, the columns along the other: a thread needs no division to know its element.
template <typename T, typename W, int BLOCK>
__global__ void __launch_bounds__(BLOCK)
    normalize_elements(const T* __restrict__ x, T* __restrict__ y, const W* __restrict__ weight,
                       const W* __restrict__ bias, const float* __restrict__ mean, const float* __restrict__ rstd,
                       Index M, Index N, Index row_stride, Index col_stride) {
  const Index first = static_cast<Index>(blockIdx.y) * BLOCK + threadIdx.x;
  const Index step = static_cast<Index>(gridDim.y) * BLOCK;
  for (Index row = blockIdx.x; row < M; row += gridDim.x) {
    for (Index i = first; i < N; i += step) {
      const float xhat = (static_cast<float>(x[row * row_stride + i * col_stride]) - mean[row]) * rstd[row];
      y[row * N + i] = static_cast<T>(affine(xhat, weight, bias, i));
    }
  }
}

// 3. A warp a row: all of a warp has the same row or none, so that it always reduces as a whole.
template <typename T, typename W, int BLOCK>
__global__ void __launch_bounds__(BLOCK)
    warp_a_row(const T* __restrict__ x, T* __restrict__ y, const W* __restrict__ weight, const W* __restrict__ bias,
               float* __restrict__ mean, float* __restrict__ rstd, Index M, Index N, Index row_stride,
               Index col_stride, double eps) {
  const cg::thread_block_tile<WARP> warp = cg::tiled_partition<WARP>(cg::this_thread_block());
  const int lane = warp.thread_rank();
  const Index warps = static_cast<Index>(gridDim.x) * (BLOCK / WARP);
  for (Index row = static_cast<Index>(blockIdx.x) * (BLOCK / WARP) + warp.meta_group_rank(); row < M; row += warps) {
    const T* in = x + row * row_stride;
    const float share = sum(lane, WARP, N, [=](Index i) { return static_cast<float>(in[i * col_stride]); });
    const float m = cg::reduce(warp, share, cg::plus<float>()) / N;
    const float squares = sum(lane, WARP, N, [=](Index i) {
      const float centred = static_cast<float>(in[i * col_stride]) - m;
      return centred * centred;
    });
    const float variance = cg::reduce(warp, squares, cg::plus<float>()) / N;
    const float r = rsqrtf(variance + static_cast<float>(eps));
    normalize(in, y + row * N, weight, bias, m, r, lane, WARP, N, col_stride);
    if (lane == 0) {
      __stcs(mean + row, m);
      __stcs(rstd + row, r);
    }
  }
}

// 4. The same, with the variance as E[x²] − E[x]².
template <typename T, typename W, int BLOCK>
__global__ void __launch_bounds__(BLOCK)
    warp_a_row_one_pass(const T* __restrict__ x, T* __restrict__ y, const W* __restrict__ weight,
                        const W* __restrict__ bias, float* __restrict__ mean, float* __restrict__ rstd, Index M,
                        Index N, Index row_stride, Index col_stride, double eps) {
  const cg::thread_block_tile<WARP> warp = cg::tiled_partition<WARP>(cg::this_thread_block());
  const int lane = warp.thread_rank();
  const Index warps = static_cast<Index>(gridDim.x) * (BLOCK / WARP);
  for (Index row = static_cast<Index>(blockIdx.x) * (BLOCK / WARP) + warp.meta_group_rank(); row < M; row += warps) {
    const T* in = x + row * row_stride;
    Sums total = sums(in, lane, WARP, N, col_stride);
    total.x = cg::reduce(warp, total.x, cg::plus<float>());
    total.squares = cg::reduce(warp, total.squares, cg::plus<float>());
    const float m = total.x / N, r = one_pass_rstd(total, m, N, eps);
    normalize(in, y + row * N, weight, bias, m, r, lane, WARP, N, col_stride);
    if (lane == 0) {
      __stcs(mean + row, m);
      __stcs(rstd + row, r);
    }
  }
}

// 5. A block a row: each warp reduces its share, then every warp reduces the warps' sums. Also E[x²] − E[x]².
template <typename T, typename W, int BLOCK>
__global__ void __launch_bounds__(BLOCK)
    block_a_row_one_pass(const T* __restrict__ x, T* __restrict__ y, const W* __restrict__ weight,
                         const W* __restrict__ bias, float* __restrict__ mean, float* __restrict__ rstd, Index M,
                         Index N, Index row_stride, Index col_stride, double eps) {
  __shared__ Sums shared[BLOCK / WARP];
  const cg::thread_block_tile<WARP> warp = cg::tiled_partition<WARP>(cg::this_thread_block());
  const int lane = warp.thread_rank();
  for (Index row = blockIdx.x; row < M; row += gridDim.x) {
    const T* in = x + row * row_stride;
    Sums total = sums(in, threadIdx.x, BLOCK, N, col_stride);
    total.x = cg::reduce(warp, total.x, cg::plus<float>());
    total.squares = cg::reduce(warp, total.squares, cg::plus<float>());
    if (lane == 0) shared[warp.meta_group_rank()] = total;
    __syncthreads();
    total = lane < BLOCK / WARP ? shared[lane] : Sums{0.0f, 0.0f};
    __syncthreads();  // before the next row's sums take their place
    total.x = cg::reduce(warp, total.x, cg::plus<float>());
    total.squares = cg::reduce(warp, total.squares, cg::plus<float>());
    const float m = total.x / N, r = one_pass_rstd(total, m, N, eps);
    normalize(in, y + row * N, weight, bias, m, r, threadIdx.x, BLOCK, N, col_stride);
    if (threadIdx.x == 0) {
      __stcs(mean + row, m);
      __stcs(rstd + row, r);
    }
  }
}
