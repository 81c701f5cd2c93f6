#include "others.h"

#include "stage.h"

namespace nccl {

const char* Others::read(int rank, uint32_t block, uint64_t offset, uint64_t bytes,
                         std::shared_ptr<Mapping>* hold) {
  const auto found = small_.find({rank, block});
  *hold =
      found != small_.end() ? found->second : Mapping::find(Stage::path_of(*room_, rank, block));
  if (*hold == nullptr || offset + bytes > (*hold)->bytes()) return nullptr;
  if (found == small_.end() && (*hold)->bytes() <= Stage::kSmall) small_[{rank, block}] = *hold;
  return (*hold)->data() + offset;
}

}  // namespace nccl
