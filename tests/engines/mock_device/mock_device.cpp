// A device that any machine has: its memory is the host's and its kernels are the CPU's, but it is a device of its own to torch.
// Operations that mix it with tensors of the host are refused, as a GPU's are, and every copy between the two is counted.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/TensorUtils.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace {

constexpr auto MOCK = c10::DeviceType::CUDA;
std::atomic<int64_t> to_device{0}, to_host{0}, streamed{0}, largest{0};

// One, unless it is hidden; torch looks for it when autograd is first used, and remembers.
c10::DeviceIndex count() {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  return visible == nullptr || *visible != 0;
}
thread_local bool inside = false;  // the fallback's own copies are no transfers: on a real device the kernel runs there

struct MockAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (static_cast<int64_t>(nbytes) > largest) largest = nbytes;
    void* data = c10::alloc_cpu(nbytes);
    return {data, data, &c10::free_cpu, c10::Device(MOCK, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::free_cpu; }
  void copy_data(void* to, const void* from, std::size_t count) const override { default_copy_data(to, from, count); }
};
MockAllocator allocator;
REGISTER_ALLOCATOR(MOCK, &allocator);

struct MockGuard final : c10::impl::DeviceGuardImplInterface {
  static constexpr c10::DeviceType static_type = MOCK;
  c10::Device here() const { return {MOCK, 0}; }
  c10::DeviceType type() const override { return MOCK; }
  c10::Device exchangeDevice(c10::Device) const override { return here(); }
  c10::Device getDevice() const override { return here(); }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device d) const override { return c10::Stream(c10::Stream::DEFAULT, d); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return count(); }
};
C10_REGISTER_GUARD_IMPL(CUDA, MockGuard);

struct CUDAHooks final : at::CUDAHooksInterface {
  explicit CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return count(); }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  at::Device getDeviceFromPtr(void*) const override { return {MOCK, 0}; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::DeviceType::CPU); }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &allocator, c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                           c10::dtype_or_default(dtype));
}

// The same memory as a tensor of the host.
at::Tensor on_host(const at::Tensor& t) {
  return t.is_cuda() ? at::from_blob(t.mutable_data_ptr(), t.sizes(), t.strides(), t.options().device(at::kCPU)) : t;
}

at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool non_blocking) {
  if (!inside && from.device() != to.device()) (to.is_cuda() ? to_device : non_blocking ? streamed : to_host)++;
  on_host(to).copy_(on_host(from));
  return to;
}

const at::Tensor& resize(const at::Tensor& t, c10::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  if (t.sizes() == size) return t;
  auto* impl = t.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(size);
  if (format) impl->empty_tensor_restride(*format);
  const auto needed = (t.numel() + t.storage_offset()) * t.dtype().itemsize();
  if (t.storage().nbytes() < needed) {
    auto room = allocator.allocate(needed);
    std::memcpy(room.get(), t.storage().data(), t.storage().nbytes());
    t.storage().set_data_ptr_noswap(std::move(room));
    t.storage().set_nbytes(needed);
  }
  return t;
}

at::Tensor strided(const at::Tensor& t, c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<int64_t> offset) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(t.storage()), t.key_set(), t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset.value_or(t.storage_offset()));
  return made;
}

at::Tensor view(const at::Tensor& t, c10::IntArrayRef size) {
  const auto whole = at::infer_size_dv(size, t.numel());
  const auto stride = at::detail::computeStride(t.sizes(), t.strides(), whole);
  TORCH_CHECK(stride, "view size is not compatible with the tensor's size and stride");
  return strided(t, whole, *stride, {});
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (to.sizes() != from.sizes()) to.resize_(from.sizes());
  auto target = to;
  return copy(target, from, false);
}

at::Scalar local_scalar(const at::Tensor& t) {
  if (!inside) to_host++;
  return on_host(t).item();
}

struct Inside {
  bool before = inside;
  Inside() { inside = true; }
  ~Inside() { inside = before; }
};

// Convolutions choose their kernel by device, before the fallback is asked.
at::Tensor convolution(const at::Tensor& x, const at::Tensor& w, const std::optional<at::Tensor>& b, c10::IntArrayRef stride,
                       c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef out_padding,
                       int64_t groups) {
  Inside guard;
  auto bias = b && b->defined() ? std::make_optional(on_host(*b)) : std::nullopt;
  return at::convolution(on_host(x), on_host(w), bias, stride, padding, dilation, transposed, out_padding, groups).to(x.device());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad, const at::Tensor& x, const at::Tensor& w, c10::IntArrayRef stride, c10::IntArrayRef padding,
    c10::IntArrayRef dilation, bool transposed, c10::IntArrayRef out_padding, int64_t groups, std::array<bool, 3> mask) {
  Inside guard;
  auto [dx, dw, db] =
      at::convolution_backward(on_host(grad), on_host(x), on_host(w), std::vector<int64_t>{transposed ? w.size(1) * groups : w.size(0)},
                               stride, padding, dilation, transposed, out_padding, groups, mask);
  auto back = [&](const at::Tensor& t) { return t.defined() ? t.to(x.device()) : t; };
  return {back(dx), back(dw), back(db)};
}

// Any other operation: the CPU's kernel, on the same memory. What it returns is brought to the device.
void anything_else(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const auto start = stack->size() - arguments.size();
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;  // (on the host, on the device)
  bool host = false;
  auto lent = [&](const at::Tensor& t, bool written, bool index = false) {
    if (!t.defined() || !t.is_cuda()) {
      host |= t.defined() && t.dim() > 0 && !index;  // numbers and indices may be the host's
      return t;
    }
    // What is still empty is resized by the kernel, which memory that it does not own cannot be.
    pairs.emplace_back(written && t.numel() == 0 ? at::empty({0}, t.options().device(at::kCPU)) : on_host(t), t);
    return pairs.back().first;
  };
  for (size_t k = 0; k < arguments.size(); k++) {
    auto& value = (*stack)[start + k];
    const bool written = arguments[k].alias_info() && arguments[k].alias_info()->isWrite();
    if (value.isTensor()) {
      value = lent(value.toTensor(), written);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(lent(t, written));
      value = list;
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const auto& t : value.toOptionalTensorVector()) list.push_back(t ? std::make_optional(lent(*t, false, true)) : t);
      value = list;
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      value = at::Device(at::kCPU);
    }
  }
  TORCH_CHECK(!(host && !pairs.empty()), "Expected all tensors to be on the same device, but ", op.schema().operator_name(),
              " got some on cpu");
  Inside guard;
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  for (auto& [here, there] : pairs) if (there.numel() == 0 && here.numel() > 0) copy_from_and_resize(here, there);
  auto back = [&](const at::Tensor& made, bool view) -> at::Tensor {
    if (!made.defined() || !made.is_cpu()) return made;
    for (auto& [here, there] : pairs) {
      if (here.is_same(made)) return there;
      const auto offset = static_cast<const char*>(made.data_ptr()) - static_cast<const char*>(here.data_ptr());
      if (view && offset >= 0 && offset < static_cast<int64_t>(here.nbytes()))
        return strided(there, made.sizes(), made.strides(), there.storage_offset() + offset / made.element_size());
    }
    auto moved = at::empty_strided(made.sizes(), made.strides(), made.options().device(c10::Device(MOCK, 0)));
    on_host(moved).copy_(made);
    return moved;
  };
  const auto& returns = op.schema().returns();
  const auto first = stack->size() - returns.size();
  for (size_t k = 0; k < returns.size(); k++) {
    auto& value = (*stack)[first + k];
    const bool view = returns[k].alias_info() != nullptr;
    if (value.isTensor()) {
      value = back(value.toTensor(), view);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const at::Tensor& t : value.toTensorVector()) list.push_back(back(t, view));
      value = list;
    }
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("resize_", resize);
  m.impl("as_strided", strided);
  m.impl("view", view);
  m.impl("_reshape_alias", [](const at::Tensor& t, c10::IntArrayRef size, c10::IntArrayRef stride) {
    return strided(t, size, stride, {});
  });
}
TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&anything_else>()); }

TORCH_LIBRARY(mock_device, m) {
  m.def("counts() -> int[]", [] { return std::vector<int64_t>{to_device, to_host, streamed, largest}; });
}
