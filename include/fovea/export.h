/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FOVEA_EXPORT_H
#define FOVEA_EXPORT_H

/* Define FOVEA_STATIC when linking the static library. */
#if defined(_WIN32) && !defined(FOVEA_STATIC)
#ifdef FOVEA_BUILDING
#define FOVEA_API __declspec(dllexport)
#else
#define FOVEA_API __declspec(dllimport)
#endif
#elif defined(__GNUC__)
#define FOVEA_API __attribute__((visibility("default")))
#else
#define FOVEA_API
#endif

#endif
