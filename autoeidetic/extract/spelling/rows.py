"""Rows of the spelling table: for each overload of ATen, the call that people write for it.

It is data for :mod:`autoeidetic.extract.spelling`, and the list of functions and methods that a
file with a program may name.
"""

#: Operators of one argument that torch has under the same name.
POINTWISE = """
abs acos acosh asin asinh atan atanh ceil cos cosh erf erfc exp exp2 expm1 floor frac isfinite isinf
isnan log log10 log1p log2 logical_not reciprocal relu round rsqrt selu sgn sigmoid sign sin sinh
sqrt square tan tanh trunc
"""
#: Operators of Python, under the name of each overload.
PYTHON = """
add.Tensor add  add.Scalar add  sub.Tensor sub  sub.Scalar sub  mul.Tensor mul  mul.Scalar mul
div.Tensor truediv  div.Scalar truediv
eq.Tensor eq  eq.Scalar eq  ne.Tensor ne  ne.Scalar ne  lt.Tensor lt  lt.Scalar lt
le.Tensor le  le.Scalar le  gt.Tensor gt  gt.Scalar gt  ge.Tensor ge  ge.Scalar ge
"""
#: One row for each overload: how the call is written, with the names of the operator's arguments.
#: An argument that is left out must have its default. ``dim=`` is short for ``dim=dim``; ``*size``
#: spreads a list; a keyword with a literal is added.
#:     with a=1     only if the argument a is 1
#:     ignoring a   whatever the value of a is: it chooses a library, not a result
#:     first        the first result of several, if no other is used
#:     parts        a tuple instead of a list, if only its items are used
ROWS = """
linear.default              F.linear(input, weight, bias)
conv1d.default              torch.conv1d(input, weight, bias, stride=, padding=, dilation=, groups=)
conv1d.padding              torch.conv1d(input, weight, bias, stride=, padding=, dilation=, groups=)
conv2d.default              torch.conv2d(input, weight, bias, stride=, padding=, dilation=, groups=)
conv2d.padding              torch.conv2d(input, weight, bias, stride=, padding=, dilation=, groups=)
conv3d.default              torch.conv3d(input, weight, bias, stride=, padding=, dilation=, groups=)
conv3d.padding              torch.conv3d(input, weight, bias, stride=, padding=, dilation=, groups=)
conv_transpose1d.default    torch.conv_transpose1d(input, weight, bias, stride=, padding=, \
output_padding=, groups=, dilation=)
conv_transpose2d.input      torch.conv_transpose2d(input, weight, bias, stride=, padding=, \
output_padding=, groups=, dilation=)
conv_transpose3d.input      torch.conv_transpose3d(input, weight, bias, stride=, padding=, \
output_padding=, groups=, dilation=)
batch_norm.default          F.batch_norm(input, running_mean, running_var, weight, bias, \
momentum=, eps=) with training=False ignoring cudnn_enabled
layer_norm.default          F.layer_norm(input, normalized_shape, weight, bias, eps=) \
ignoring cudnn_enable
group_norm.default          F.group_norm(input, num_groups, weight, bias, eps=) \
ignoring cudnn_enabled
rms_norm.default            F.rms_norm(input, normalized_shape, weight, eps=)
embedding.default           F.embedding(indices, weight, padding_idx=, scale_grad_by_freq=, sparse=)
dropout.default             F.dropout(input, p=, training=train)
scaled_dot_product_attention.default  F.scaled_dot_product_attention(query, key, value, \
attn_mask=, dropout_p=, is_causal=, scale=, enable_gqa=)

gelu.default                F.gelu(self, approximate=)
silu.default                F.silu(self)
mish.default                F.mish(self)
elu.default                 F.elu(self, alpha=)
celu.default                F.celu(self, alpha=)
glu.default                 F.glu(self, dim=)
relu6.default               F.relu6(self)
hardtanh.default            F.hardtanh(self, min_val=, max_val=)
hardsigmoid.default         F.hardsigmoid(self)
hardswish.default           F.hardswish(self)
leaky_relu.default          F.leaky_relu(self, negative_slope=)
softplus.default            F.softplus(self, beta=, threshold=)
log_sigmoid.default         F.logsigmoid(self)
hardshrink.default          F.hardshrink(self, lambd=)
softshrink.default          F.softshrink(self, lambd=)
threshold.default           F.threshold(self, threshold, value)
prelu.default               torch.prelu(self, weight)
softmax.int                 torch.softmax(self, dim, dtype=)
_softmax.default            torch.softmax(self, dim) with half_to_float=False
log_softmax.int             torch.log_softmax(self, dim, dtype=)
_log_softmax.default        torch.log_softmax(self, dim) with half_to_float=False

neg.default                 operator.neg(self)
matmul.default              operator.matmul(self, other)
mm.default                  torch.mm(self, mat2)
bmm.default                 torch.bmm(self, mat2)
mv.default                  torch.mv(self, vec)
addmm.default               torch.addmm(self, mat1, mat2, beta=, alpha=)
baddbmm.default             torch.baddbmm(self, batch1, batch2, beta=, alpha=)
rsub.Tensor                 operator.sub(other, self)
rsub.Scalar                 operator.sub(other, self)
pow.Tensor_Scalar           operator.pow(self, exponent)
pow.Tensor_Tensor           operator.pow(self, exponent)
pow.Scalar                  torch.pow(self, exponent)
remainder.Tensor            torch.remainder(self, other)
remainder.Scalar            torch.remainder(self, other)
floor_divide.default        torch.floor_divide(self, other)
maximum.default             torch.maximum(self, other)
minimum.default             torch.minimum(self, other)
clamp.default               torch.clamp(self, min=, max=)
clamp_min.default           torch.clamp(self, min=)
clamp_max.default           torch.clamp(self, max=)
where.self                  torch.where(condition, self, other)
addcmul.default             torch.addcmul(self, tensor1, tensor2, value=)
addcdiv.default             torch.addcdiv(self, tensor1, tensor2, value=)
lerp.Scalar                 torch.lerp(self, end, weight)
lerp.Tensor                 torch.lerp(self, end, weight)
logical_and.default         torch.logical_and(self, other)
logical_or.default          torch.logical_or(self, other)
bitwise_and.Tensor          torch.bitwise_and(self, other)
bitwise_or.Tensor           torch.bitwise_or(self, other)
masked_fill.Scalar          .masked_fill(mask, value)
masked_fill.Tensor          .masked_fill(mask, value)

mean.default                .mean(dtype=)
mean.dim                    .mean(dim, keepdim=, dtype=)
sum.default                 .sum(dtype=)
sum.dim_IntList             .sum(dim, keepdim=, dtype=)
var.correction              .var(dim, correction=, keepdim=)
std.correction              .std(dim, correction=, keepdim=)
amax.default                .amax(dim, keepdim=)
amin.default                .amin(dim, keepdim=)
argmax.default              .argmax(dim, keepdim=)
argmin.default              .argmin(dim, keepdim=)
cumsum.default              .cumsum(dim, dtype=)
logsumexp.default           torch.logsumexp(self, dim, keepdim=)
linalg_vector_norm.default  torch.linalg.vector_norm(self, ord, dim=, keepdim=, dtype=)
max.dim                     torch.max(self, dim, keepdim=) parts
min.dim                     torch.min(self, dim, keepdim=) parts
topk.default                torch.topk(self, k, dim=, largest=, sorted=) parts
sort.default                torch.sort(self, dim=, descending=) parts

max_pool1d.default          torch.max_pool1d(self, kernel_size, stride=, padding=, dilation=, \
ceil_mode=)
max_pool2d.default          torch.max_pool2d(self, kernel_size, stride=, padding=, dilation=, \
ceil_mode=)
max_pool3d.default          torch.max_pool3d(self, kernel_size, stride=, padding=, dilation=, \
ceil_mode=)
max_pool2d_with_indices.default  torch.max_pool2d(self, kernel_size, stride=, padding=, \
dilation=, ceil_mode=) first
max_pool3d_with_indices.default  torch.max_pool3d(self, kernel_size, stride=, padding=, \
dilation=, ceil_mode=) first
avg_pool1d.default          F.avg_pool1d(self, kernel_size, stride=, padding=, ceil_mode=, \
count_include_pad=)
avg_pool2d.default          F.avg_pool2d(self, kernel_size, stride=, padding=, ceil_mode=, \
count_include_pad=, divisor_override=)
avg_pool3d.default          F.avg_pool3d(self, kernel_size, stride=, padding=, ceil_mode=, \
count_include_pad=, divisor_override=)
adaptive_avg_pool1d.default F.adaptive_avg_pool1d(self, output_size)
adaptive_avg_pool2d.default F.adaptive_avg_pool2d(self, output_size)
adaptive_avg_pool3d.default F.adaptive_avg_pool3d(self, output_size)
adaptive_max_pool2d.default F.adaptive_max_pool2d(self, output_size) first
upsample_nearest1d.default  F.interpolate(self, size=output_size)
upsample_nearest2d.default  F.interpolate(self, size=output_size)
upsample_nearest3d.default  F.interpolate(self, size=output_size)
upsample_nearest1d.vec      F.interpolate(input, size=output_size, scale_factor=scale_factors)
upsample_nearest2d.vec      F.interpolate(input, size=output_size, scale_factor=scale_factors)
upsample_nearest3d.vec      F.interpolate(input, size=output_size, scale_factor=scale_factors)
upsample_bilinear2d.default F.interpolate(self, size=output_size, mode='bilinear', align_corners=)
upsample_bilinear2d.vec     F.interpolate(input, size=output_size, scale_factor=scale_factors, \
mode='bilinear', align_corners=)
upsample_bicubic2d.default  F.interpolate(self, size=output_size, mode='bicubic', align_corners=)
upsample_bicubic2d.vec      F.interpolate(input, size=output_size, scale_factor=scale_factors, \
mode='bicubic', align_corners=)
constant_pad_nd.default     F.pad(self, pad, value=)
pad.default                 F.pad(self, pad, mode=, value=)
reflection_pad1d.default    F.pad(self, padding, mode='reflect')
reflection_pad2d.default    F.pad(self, padding, mode='reflect')
replication_pad1d.default   F.pad(self, padding, mode='replicate')
replication_pad2d.default   F.pad(self, padding, mode='replicate')
pixel_shuffle.default       F.pixel_shuffle(self, upscale_factor)
pixel_unshuffle.default     F.pixel_unshuffle(self, downscale_factor)

view.default                .view(*size)
_unsafe_view.default        .view(*size)
reshape.default             .reshape(*shape)
permute.default             .permute(*dims)
transpose.int               .transpose(dim0, dim1)
t.default                   .t()
expand.default              .expand(*size)
flatten.using_ints          .flatten(start_dim, end_dim)
unflatten.int               .unflatten(dim, sizes)
unsqueeze.default           .unsqueeze(dim)
squeeze.default             .squeeze()
squeeze.dim                 .squeeze(dim)
squeeze.dims                .squeeze(dim)
repeat.default              .repeat(*repeats)
movedim.int                 .movedim(source, destination)
movedim.intlist             .movedim(source, destination)
contiguous.default          .contiguous(memory_format=)
clone.default               .contiguous() with memory_format=torch.contiguous_format
clone.default               .clone(memory_format=)
detach.default              .detach()
type_as.default             .type_as(other)
to.dtype                    .to(dtype)
_to_copy.default            .to(dtype)
sym_size.int                .size(dim)
sym_numel.default           .numel()
narrow.default              .narrow(dim, start, length)
as_strided.default          .as_strided(size, stride, storage_offset)
new_zeros.default           .new_zeros(size)
new_ones.default            .new_ones(size)
new_full.default            .new_full(size, fill_value)
zeros_like.default          torch.zeros_like(self)
ones_like.default           torch.ones_like(self)
flip.default                torch.flip(self, dims)
roll.default                torch.roll(self, shifts, dims)
tril.default                torch.tril(self, diagonal)
triu.default                torch.triu(self, diagonal)
cat.default                 torch.cat(tensors, dim=)
stack.default               torch.stack(tensors, dim=)
split.Tensor                torch.split(self, split_size, dim=) parts
split_with_sizes.default    torch.split(self, split_sizes, dim=) parts
chunk.default               torch.chunk(self, chunks, dim=) parts
unbind.int                  torch.unbind(self, dim=) parts
index_select.default        torch.index_select(self, dim, index)
gather.default              torch.gather(self, dim, index)
repeat_interleave.self_int  torch.repeat_interleave(self, repeats, dim=)
"""
