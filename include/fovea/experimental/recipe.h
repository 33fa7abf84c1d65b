/* SPDX-License-Identifier: Apache-2.0 */
/** Methods by name: a paper's method is an operation and the numbers that it calls it with.
 *
 *  Experimental: names, rows and functions may change with any release, and the ABI promise does
 *  not cover them.
 *
 *    fovea_attention_forward_params p = {0};
 *    p.struct_size = sizeof p;
 *    p.q = q, p.k = k, p.v = v, p.o = o;
 *    status = fovea_x_recipe_apply("streamingllm", "attention_forward", &p);
 *    p.window_left = 1024;
 *    if (status == FOVEA_OK) status = fovea_attention_forward(ctx, &p);
 *
 *  apply writes the numbers of the method: causal, sink_keys and window_left here.  What the caller
 *  sets afterwards stands.  The call is the operation's own: its workspace query, its errors, its
 *  kernels, its gradient.
 *
 *  The rows are those of src/recipes.json; `fovea_info --recipes` prints them. */
#ifndef FOVEA_EXPERIMENTAL_RECIPE_H
#define FOVEA_EXPERIMENTAL_RECIPE_H

#include "../core.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A method.  Every text is static and never NULL; "" where there is none. */
typedef struct fovea_x_recipe {
  size_t struct_size;    /**< sizeof(fovea_x_recipe), set by the caller */
  const char* name;      /**< "streamingllm": what the functions below take */
  const char* title;     /**< "StreamingLLM": as its paper writes it */
  const char* paper;     /**< arXiv number, "2309.17453"; without a paper the model */
  const char* operation; /**< that runs it, "attention_forward" */
  const char* backward;  /**< that trains it, "attention_backward"; "": none */
  const char* numbers;   /**< that apply writes, "causal=1 sink_keys=4 window_left=2000" */
  const char* needs;     /**< fields that the caller gives too, "head_window"; spaces between */
  const char* words;     /**< what it does here, and what it does not */
  int64_t year;          /**< of the paper or the model */
} fovea_x_recipe;

/** How many methods the library has. */
FOVEA_API int64_t fovea_x_recipe_count(void);

/** Method number `index`, 0 .. fovea_x_recipe_count() - 1, by name.  FOVEA_INVALID_ARGUMENT for
 *  another index, NULL, or a struct_size that is not set; nothing is written then. */
FOVEA_API fovea_status fovea_x_recipe_at(int64_t index, fovea_x_recipe* recipe);

/** The method of a name.  FOVEA_INVALID_ARGUMENT as above, or for a name that there is not: the
 *  sentence has those that are near it. */
FOVEA_API fovea_status fovea_x_recipe_get(const char* name, fovea_x_recipe* recipe);

/** Writes the numbers of a method into the params of `operation`, its own or its backward.  All
 *  else stays as it is.  A backward takes the numbers whose fields it has.
 *
 *  Give the tensors first: a field that the method needs and that is absent, or 0, is
 *  FOVEA_INVALID_ARGUMENT.  So are an unknown name, an operation that is not the method's, and a
 *  struct_size that has not all of its fields.  Nothing is written then. */
FOVEA_API fovea_status fovea_x_recipe_apply(
    const char* name, const char* operation, void* params);

#ifdef __cplusplus
}
#endif

#endif
