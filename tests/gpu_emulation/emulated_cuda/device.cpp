// A CUDA device whose memory is that of the host: for a build of PyTorch that has none.
//
// Tensors on it are ordinary ones, with the dispatch key and the device of CUDA. Every operation that PyTorch would hand
// to a CUDA kernel arrives in `run_on_host`, which relabels tensors as ones of the CPU, calls the kernel of the CPU and
// relabels its results: nothing is copied. Tensors of two devices are refused as CUDA refuses them. Random numbers come
// from the generator of the CPU, so that a computation gives the same numbers on both devices.

#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/alloc_cpu.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace {

using at::Tensor;
using c10::DataPtr;
using c10::Device;
using c10::DeviceType;
using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using c10::Storage;

const Device kDevice(DeviceType::CUDA, 0);
const Device kHost(DeviceType::CPU);

// Memory.

// The same memory with another label; `owner` is kept as long as it is used.
template <typename Owner>
DataPtr relabelled(void* data, Owner owner, Device device) {
  auto* kept = new Owner(std::move(owner));
  return {data, kept, [](void* context) { delete static_cast<Owner*>(context); }, device};
}

struct DeviceMemory final : c10::Allocator {
  DataPtr allocate(size_t size) override {
    DataPtr memory = c10::GetCPUAllocator()->allocate(size);
    void* data = memory.get();
    return relabelled(data, std::move(memory), kDevice);
  }
  void copy_data(void* target, const void* source, std::size_t size) const override {
    default_copy_data(target, source, size);
  }
};

// Memory of the host that the device may read while the host goes on.
struct PinnedMemory final : c10::Allocator {
  DataPtr allocate(size_t size) override {
    void* data = c10::alloc_cpu(size);
    const std::lock_guard<std::mutex> guard(mutex_);
    blocks_.insert(data);
    return {data, data, &PinnedMemory::release, kHost};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return &PinnedMemory::release;
  }
  void copy_data(void* target, const void* source, std::size_t size) const override {
    default_copy_data(target, source, size);
  }
  static bool holds(const void* data) {
    const std::lock_guard<std::mutex> guard(mutex_);
    return blocks_.count(data) != 0;
  }

 private:
  static void release(void* data) {
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      blocks_.erase(data);
    }
    c10::free_cpu(data);
  }
  static inline std::mutex mutex_;
  static inline std::unordered_set<const void*> blocks_;
};

DeviceMemory device_memory;
PinnedMemory pinned_memory;

// What PyTorch asks of a device.

struct Guard final : c10::impl::NoOpDeviceGuardImpl<DeviceType::CUDA> {
  Device getDevice() const override { return kDevice; }
  Device exchangeDevice(Device) const override { return kDevice; }
  c10::Stream getStream(Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, kDevice); }
  c10::Stream getNewStream(Device, int) const override { return getStream(kDevice); }
  c10::Stream getDefaultStream(Device) const override { return getStream(kDevice); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return getStream(kDevice); }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return 1; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  Device getDeviceFromPtr(void*) const override { return kDevice; }
  bool isPinnedPtr(const void* data) const override { return PinnedMemory::holds(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &pinned_memory; }
  c10::Allocator* getCUDADeviceAllocator() const override { return &device_memory; }
};

// Tensors of one device seen as ones of the other.

Tensor seen_as(Storage storage, const Tensor& like, DispatchKey key) {
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), DispatchKeySet(key), like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  // A conjugate is the memory of its original with a bit: without it, it would be the original.
  if (like.is_conj()) {
    impl->_set_conj(true);
  }
  if (like.is_neg()) {
    impl->_set_neg(true);
  }
  return tensor;
}

Storage storage_on(const Storage& storage, Device device, c10::Allocator* allocator) {
  auto data = relabelled(storage.mutable_data(), storage, device);
  return {Storage::use_byte_size_t(), storage.nbytes(), std::move(data), allocator, /*resizable=*/true};
}

bool in_two_places(const Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.dim() > 0;
}

// The arguments of one call on the device, on their way to the host and back.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op), name_(op.schema().name()) {}

  void to_host(torch::jit::Stack& stack) {
    const auto& arguments = op_.schema().arguments();
    const size_t first = stack.size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      // CUDA takes indices from the host, and the sizes of packed sequences live there.
      const bool anywhere = arguments[i].name() == "indices" || arguments[i].name() == "batch_sizes";
      stack[first + i] = value_on_host(stack[first + i], anywhere);
    }
    const bool refused = has_foreign_ && !seen_.empty();
    TORCH_CHECK(
        !refused,
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (", name_, ")");
  }

  void to_device(torch::jit::Stack& stack) {
    for (auto& [device, host] : seen_) {
      follow(device, host);
    }
    const size_t first = stack.size() - op_.schema().returns().size();
    for (size_t i = first; i < stack.size(); ++i) {
      stack[i] = value_on_device(stack[i]);
    }
  }

 private:
  IValue value_on_host(const IValue& value, bool anywhere) {
    if (value.isTensor()) {
      return tensor_on_host(value.toTensor(), anywhere);
    }
    if (value.isTensorList()) {
      c10::List<Tensor> tensors;
      for (const Tensor& tensor : value.toTensorVector()) {
        tensors.push_back(tensor_on_host(tensor, anywhere));
      }
      return tensors;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> tensors;
      for (const std::optional<Tensor>& tensor : value.toOptionalTensorVector()) {
        tensors.push_back(tensor ? std::optional<Tensor>(tensor_on_host(*tensor, anywhere)) : std::nullopt);
      }
      return tensors;
    }
    TORCH_CHECK(!value.isGenerator(), "Expected a 'cuda' device type for generator but found 'cpu'");
    return value.isDevice() ? IValue(kHost) : value;
  }

  Tensor tensor_on_host(const Tensor& tensor, bool anywhere) {
    if (!tensor.defined() || !tensor.is_cuda()) {
      has_foreign_ |= in_two_places(tensor) && !anywhere;
      return tensor;
    }
    for (const auto& [device, host] : seen_) {
      if (device.is_same(tensor)) {
        return host;
      }
    }
    auto* key = tensor.storage().unsafeGetStorageImpl();
    auto found = storages_.find(key);
    if (found == storages_.end()) {
      found = storages_.emplace(key, storage_on(tensor.storage(), kHost, c10::GetCPUAllocator())).first;
    }
    seen_.emplace_back(tensor, seen_as(found->second, tensor, DispatchKey::CPU));
    return seen_.back().second;
  }

  // What the kernel did to sizes and storage of an argument.
  static void follow(const Tensor& device, const Tensor& host) {
    if (device.sizes() != host.sizes() || device.strides() != host.strides() ||
        device.storage_offset() != host.storage_offset()) {
      device.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
    if (device.storage().data() != host.storage().data()) {
      device.storage().set_data_ptr_noswap(relabelled(host.storage().mutable_data(), host.storage(), kDevice));
      device.storage().set_nbytes(host.storage().nbytes());
    }
  }

  IValue value_on_device(const IValue& value) {
    if (value.isTensor()) {
      return tensor_on_device(value.toTensor());
    }
    if (value.isTensorList()) {
      c10::List<Tensor> tensors;
      for (const Tensor& tensor : value.toTensorVector()) {
        tensors.push_back(tensor_on_device(tensor));
      }
      return tensors;
    }
    return value;
  }

  Tensor tensor_on_device(const Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_cpu()) {
      return tensor;
    }
    for (const auto& [device, host] : seen_) {
      if (host.is_same(tensor)) {
        return device;
      }
      if (host.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl()) {
        return seen_as(device.storage(), tensor, DispatchKey::CUDA);
      }
    }
    return seen_as(storage_on(tensor.storage(), kDevice, &device_memory), tensor, DispatchKey::CUDA);
  }

  const c10::OperatorHandle& op_;
  const std::string& name_;
  bool has_foreign_ = false;
  std::vector<std::pair<Tensor, Tensor>> seen_;
  std::unordered_map<c10::StorageImpl*, Storage> storages_;
};

// Nothing is recorded for gradients, cast or shown to Python while the host stands in for the device.
struct Alone {
  at::AutoDispatchBelowADInplaceOrView below;
  c10::impl::ExcludeDispatchKeyGuard uncast{c10::autocast_dispatch_keyset};
  c10::impl::ExcludeDispatchKeyGuard unseen{DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot})};
};

void run_on_host(const c10::OperatorHandle& op, DispatchKeySet, torch::jit::Stack* stack) {
  const Alone alone;
  Call call(op);
  call.to_host(*stack);
  op.callBoxed(stack);
  call.to_device(*stack);
}

// What has no kernel of the CPU that could stand in.

void check_number(std::optional<Device> device) {
  TORCH_CHECK(!device || device->index() <= 0, "CUDA error: invalid device ordinal");
}

Tensor empty(
    c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<Device> device, std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  check_number(device);
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  const auto type = dtype.value_or(at::typeMetaToScalarType(c10::get_default_dtype()));
  return at::detail::empty_generic(
      C10_AS_INTARRAYREF_SLOW(size), &device_memory, DispatchKeySet(DispatchKey::CUDA), type, format);
}

Tensor empty_strided(
    c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout>, std::optional<Device> device, std::optional<bool>) {
  check_number(device);
  const auto type = dtype.value_or(at::typeMetaToScalarType(c10::get_default_dtype()));
  return at::detail::empty_strided_generic(
      C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &device_memory,
      DispatchKeySet(DispatchKey::CUDA), type);
}

Tensor on_host(const Tensor& tensor) {
  return tensor.is_cuda() ? seen_as(storage_on(tensor.storage(), kHost, c10::GetCPUAllocator()), tensor, DispatchKey::CPU)
                          : tensor;
}

Tensor& copy_(Tensor& target, const Tensor& source, bool) {
  const Alone alone;
  on_host(target).copy_(on_host(source));
  return target;
}

Tensor& set_storage_at(
    Tensor& tensor, Storage storage, c10::SymInt offset, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(storage));
  if (stride.empty() && !size.empty()) {
    impl->set_storage_offset(offset.expect_int());
    impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  } else {
    impl->set_sizes_and_strides(
        C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), offset.expect_int());
  }
  return tensor;
}

Tensor& set_storage(Tensor& tensor, Storage storage) {
  const c10::SymInt length(static_cast<int64_t>(storage.nbytes() / tensor.dtype().itemsize()));
  return set_storage_at(tensor, std::move(storage), 0, {length}, {});
}

Tensor& set_tensor(Tensor& tensor, const Tensor& source) {
  return set_storage_at(
      tensor, source.storage(), source.sym_storage_offset(), source.sym_sizes(), source.sym_strides());
}

void record_stream(Tensor&, c10::Stream) {}

int64_t attention_by_its_definition(
    const Tensor&, const Tensor&, const Tensor&, const std::optional<Tensor>&, double, bool, std::optional<double>,
    bool) {
  return 0;
}

} // namespace

namespace c10::impl {
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
} // namespace c10::impl

namespace at {
C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, Hooks)
} // namespace at

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_host>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("copy_", copy_);
  library.impl("set_.source_Storage", set_storage);
  library.impl("set_.source_Storage_storage_offset", set_storage_at);
  library.impl("set_.source_Tensor", set_tensor);
  library.impl("record_stream", record_stream);
  library.impl("_fused_sdp_choice", attention_by_its_definition);
}
