"""A profile's words in Chinese, with the same names as texts_en.py. Only letters that gbk has."""

VERDICTS = {
    "loading": "训练在等数据：{share:.0%} 的时间花在读取对局上。网络更新得再快，也只是等得更久。",
    "playing": "瓶颈在采集：{share:.0%} 的时间用来对局，网络更新再快也省不了多少。",
    "logging": "写日志和保存占了 {share:.0%} 的时间。",
    "waiting": "GPU 有 {share:.0%} 的时间无事可做：每次更新，主机都多等了它 {waits:,.0f} 次。",
    "feeding": "GPU 有 {share:.0%} 的时间无事可做：每次运算都太小，主机来不及派活。",
    "copying": "设备忙碌的时间里，{share:.0%} 花在主机与设备之间的拷贝上。",
    "small": "时间都耗在大量的小运算上：更新只达到这台设备矩阵乘法速度的 {efficiency:.1%}。",
    "computing": "时间花在了该花的地方，也就是计算：每秒 {steps:,.0f} 步，更新达到这台设备矩阵乘法速度的 "
    "{efficiency:.1%}。",
}

WARNINGS = {
    "idle_though_used": "驱动显示 GPU 使用率 {use:.0%}，但它真正在计算的时间只有 {busy:.0%}，其实是闲着的："
    "只要有内核在跑，再小驱动也算作使用。",
    "waits": "每次更新，主机多等了设备 {count:,.0f} 次，共 {places} 处；最多的一处在 {where}。",
    "copies": "主机与设备之间的拷贝占设备忙碌时间的 {share:.0%}，低于 15% 才算好。",
    "pageable": "每次更新有 {count:,.0f} 次拷贝没有用锁页内存，每一次主机都得等。",
    "retries": "显存满过 {count:,.0f} 次：分配器只好交还缓存再重新申请。",
    "tight": "内存已用 {share:.0%}，批次再大一些就放不下了。",
    "few_episodes": "每次更新只有 {episodes:,.0f} 局，梯度噪声大，网络调用也太小。",
    "few_minibatches": "每轮只有 {count} 个小批次，打了这么多局，却只学了这么几步。",
    "amp_without_effect": "--use_amp 在这里不起作用：混合精度需要带相应单元的设备。",
    "amp_is_slower": "在 CPU 上，--use_amp 会让宽度 {hidden} 的网络变慢；宽度 {width} 起才有用。",
    "recompiles": "torch.compile 生成了 {count} 个图，通常不超过 5 个：网络里有某处依赖张量的大小。",
    "look": "“{look}”这一遍用时是普通计时的 {ratio:.1f} 倍，它给出的占比要打折看。",
    "uneven": "各次更新的用时相差 {spread:.0%}：有别的程序在抢这台机器，或者每局长短不一。",
}

ADVICE = {
    "loading": "读取数据占 {share:.0%} 的时间；store 里的对局已经检查过、算好了回报，拿来就能用（如果已经是 store，"
    "就把它放到本地硬盘上）",
    "few_games": "平均每次网络调用只回答 {states:,.0f} 个状态，而采集占 {share:.0%} 的时间",
    "small_calls": "同时进行的对局数不会超过这个值；平均每次网络调用只回答 {states:,.0f} 个状态",
    "slow_game": "游戏自身的代码占 {share:.0%} 的时间，只用了 {cores} 个核中的一个；可以让别的进程来打",
    "few_episodes": "每次更新只有 {episodes:,.0f} 局，梯度噪声大，网络调用也太小",
    "few_minibatches": "每轮只有 {count} 个小批次；局数多了，每次更新至少能学 4 步",
    "small_batch": "每批 {batch:,} 步，运算太小；批次大了，开销和其中不同的动作由更多步分摊（现在达到矩阵乘法速度的 "
    "{efficiency:.1%}）",
    "cut_batches": "动作列表太长，批次从 {wanted:,.0f} 步被切成了 {steps:,.0f} 步",
    "no_amp": "设备 {share:.0%} 的时间在算网络主干，这台设备用 {dtype} 算得更快",
    "no_compile_gpu": "小运算太多，主机来不及派活；合成一张图后运算就少了（第一次更新会慢一些）",
    "no_compile_cpu": "网络宽度只有 {hidden}，运算很小；合成一张图后运算就少了（第一次更新会慢一些）",
    "too_many_threads": "{threads} 个线程分一个很小的矩阵乘法，大多在互相等（现在达到矩阵乘法速度的 {efficiency:.1%}）",
    "too_few_threads": "{cores} 个核只用了 {threads} 个线程，而网络够宽，用得上更多",
    "tight_memory": "显存满过 {count:,.0f} 次；把批次切小，结果不变",
    "fragmented": "分配器占着的显存里，有 {share:.0%} 连峰值时也用不上",
    "often_saved": "写日志和保存占 {share:.0%} 的时间，每 {every} 次更新就存一次检查点",
    "tried": "试出来的",
}

SPANS = {
    "game": "游戏自身的代码",
    "plan": "规划批次",
    "load": "读取对局",
    "copy": "拷贝到设备",
    "forward": "前向",
    "loss": "损失",
    "backward": "反向",
    "optimiser": "优化器",
    "logging": "写日志和保存",
    "idle": "其余，以及等待",
}

CRITERIA = {
    "gpu_use": "GPU 使用率",
    "memory": "显存：已分配峰值占预留的比例",
    "copies": "拷贝占设备时间",
    "compute": "计算占设备时间",
    "speed_up": "相对逐步调用网络的加速",
}
GOALS = {
    "gpu_use": "75% 以上",
    "memory": "70% 以上",
    "copies": "15% 以下",
    "compute": "60% 以上",
    "speed_up": "2 到 5 倍",
}
OUTCOMES = {"met": "达到", "missed": "未达到", "absent": "此处不适用"}
TO_DO = {
    "gpu_use": "调大 --batch_size 和 --num_games；消除下面列出的等待；试试 --compile on。",
    "memory": "显卡还有空余时没有损失；否则用 --empty_cache_every 10。",
    "copies": "找出没用锁页内存的拷贝，以及更新途中的读取。",
    "compute": "加大批次，减少读取和拷贝：见建议。",
    "speed_up": "批次太小，没什么可分摊的：调大 --batch_size 和 --update_frequency。",
}
ABSENT = {
    "gpu_use": "针对 GPU",
    "memory": "针对显存",
    "copies": "针对 GPU",
    "compute": "针对 GPU",
    "speed_up": "这次没有测",
}

LINES = {
    "total": "总用时 {seconds} 秒，每秒 {episodes} 局",
    "gpu_memory": "显存：已分配 {used} GB，共 {all} GB（{share:.0%}）",
    "gpu_memory_unknown": "显存：没有测到",
    "no_gpu": "没有 GPU：只有 GPU 才有的项目，下面略去。进程最多占用内存 {peak} GB。",
    "warnings": "警告：",
    "no_warnings": "警告：无",
    "suggestions": "建议：",
    "no_suggestions": "建议：无，没有哪条规则认为需要改动",
    "suggestion": "{flag}：{why}（{tried}）",
    "tried": "实测快到 {ratio:.2f} 倍",
    "tried_on_top": "在 {others} 的基础上实测快到 {ratio:.2f} 倍",
    "on_top": "{changes}，基于 {others}",
    "to_be_done": "还没试过",
    "tried_together": "只和 {others} 一起试过：速度是 {ratio:.2f} 倍",
    "not_tried": "还没试过，movelist profile --tune 会去试",
    "convert": "movelist convert {data} --out store，再用 --data store",
    "tuned": "合在一起：{flags}{ratio}",
    "tuned_ratio": "（实测快到 {ratio:.2f} 倍，{low} 到 {high}）",
    "source": "{source}；{updates} 次更新，每次 {episodes} 局、{steps} 步、{seconds} 秒（+/- {spread:.0%}）",
    "speed": "每秒 {steps} 步，每秒 {actions} 个合法动作",
    "halves": "采集占 {rollout:.0%}（{rollout_seconds} 秒），更新占 {update:.0%}（{update_seconds} 秒）",
    "spans": "时间花在哪里（主机{device}）：",
    "spans_device": "，然后是设备",
    "copies": "每次更新的拷贝：到设备 {to_device} MB，回主机 {to_host} MB，共 {count} 次，其中 {pageable} "
    "次没有用锁页内存；"
    "占设备时间的 {share:.1%}",
    "compute_share": "计算内核占设备时间的 {share:.1%}",
    "efficiency": "效率：按公式每次更新要 {flops} Gflop，实际每秒 {rate} Gflop；这个宽度的矩阵乘法在这里每秒 "
    "{matmul} Gflop，"
    "所以是 {efficiency:.1%}",
    "waits": "等待：每次更新 {count} 次，其中必需的 {known} 次",
    "waits_rehearsed": "等待：在 GPU 上每次更新会有 {count} 次，其中必需的 {known} 次（根据程序的写法判断）",
    "waits_rollout": "另外，采集时读取 {count} 次：每次网络调用都要取回它的选择",
    "known": "必需",
    "extra": "多余",
    "unseen": "检测不到的：",
    "memory": "显存：预留 {reserved} GB，峰值分配 {peak} GB（{share:.0%}），其余是碎片或留着备用；显卡共 {all} GB，"
    "预留了 {card:.0%}",
    "process": "进程最多占用内存 {peak} GB",
    "machine": "机器：{cpu}，{cores} 核，{threads} 线程；内存 {memory} GB；{platform}；Python {python}，torch {torch}，"
    "movelist {movelist}",
    "machine_gpu": "{device}，显存 {memory} GB",
    "use": "按驱动的统计 GPU 使用率 {use:.0%}，真正在计算的时间 {busy:.0%}；采样 {samples} 次",
    "use_by_driver": "按驱动的统计 GPU 使用率 {use:.0%}：只要有内核在跑，再小也算；采样 {samples} 次",
    "use_by_events": "GPU 真正在计算的时间 {busy:.0%}；拿不到驱动的统计",
    "cpu_use": "进程用了全部核的 {cpu:.0%}",
    "lists": "动作列表：平均 {mean} 个合法动作，最多 {longest} 个；一批之中不同的占 {unique:.1%}；"
    "若补齐到批内最长，数量会是 {padding} 倍",
    "batches": "每批 {steps} 步；对局时每次网络调用回答 {states} 个状态",
    "batches_loaded": "每批 {steps} 步；没有对局",
    "recompiles": "torch.compile 生成了 {count} 个图",
    "histogram": "各列表长度的步数：",
    "looks": "各遍与普通计时相比：{looks}",
    "goals": "目标：",
    "goal": "{name}：{value}，目标 {goal}：{outcome}",
    "unknown": "-",
    "per_sample": "同样这些步，更新每秒 {ours} 步；逐步调用网络、逐位编码每秒 {base} 步：{ratio} 倍",
    "trials": "试过的改动，与原设置轮流运行：",
    "trial": "{changes}：{ratio:.2f} 倍（{low} 到 {high}），每秒 {steps} 步，{outcome}",
    "helped": "有效",
    "hurt": "变慢",
    "within": "差别没有超出波动",
    "times": "{ratio} 倍",
    "absent": "{outcome}（{reason}）",
    "unit": "秒",
    "comma": "，",
    "semicolon": "；",
}

# 测量过程中显示的。
PROGRESS = {
    "measuring": "正在测量，大约 {seconds:,.0f} 秒……",
    "ratio": "正在把这些设置与 --preset {preset} 轮流运行，大约 {seconds:,.0f} 秒……",
    "ratio_found": "用这些设置，这台机器每秒学习的步数是 --preset {preset} 的 {ratio:.2f} 倍（{low:.2f} 到 {high:.2f}，"
    "{pairs} 对）。",
    "trying": "正在轮流试 {count} 项改动，大约 {seconds:,.0f} 秒……",
    "trial": "{changes}{on_top}：每秒 {steps:,.0f} 步，{ratio:.2f} 倍（{low} 到 {high}，{pairs} 对）",
    "on_top": "，在 {others} 之上",
    "together": "全部一起：{trial}",
    "preset": "更快的设置，存成了预设：movelist train --preset {file}",
    "flags": "或者写成参数：{command}",
    "learning": "测的只是速度：--batch_size 和 --update_frequency 对学习有什么影响，是另一个问题。",
    "nothing": "试过的改动都不更快：设置保持不变。",
    "files": "文件：{folder}（{names}）。",
}

LOOKS = {"plain": "普通计时", "spans": "分段计时", "trace": "跟踪", "waits": "等待"}

COMPARE = {
    "faster": "速度是之前的 {speed:.2f} 倍，变快了，超出了波动（{noise:.2f}）。",
    "slower": "速度是之前的 {speed:.2f} 倍，变慢了，超出了波动（{noise:.2f}）。",
    "same": "速度是之前的 {speed:.2f} 倍：在波动（{noise:.2f}）之内，看不出差别。",
    "unknown": "速度是之前的 {speed:.2f} 倍；更新次数太少，分不清是不是波动。",
    "machine": "机器不同：{name} 之前是 {old}，现在是 {new}。",
    "setting": "设置不同：{name} 之前是 {old}，现在是 {new}。",
    "source": "数据来源不同：之前是 {old}，现在是 {new}。",
    "beyond": "超出波动",
    "within": "在波动之内",
    "unclear": "",
    "row": "{name}：{old} -> {new}",
    "head_old": "之前",
    "head_new": "之后",
    "head_ratio": "比值",
    "rule": "波动是两次更新用时中位数的标准误差合起来的两倍；比值在 1/{noise:.2f} 到 {noise:.2f} 之间可能只是偶然。"
    "更新中的某一部分是与整个更新的波动相比的，所以很短的部分比值变化再大，也可能仍在波动之内。",
}
FIGURES = {
    "steps_per_second": "每秒步数（按更新的中位数）",
    "episodes_per_second": "每秒局数",
    "actions_per_second": "每秒合法动作数",
    "rollout": "采集，毫秒/千步",
    "update": "更新，毫秒/千步",
    **{f"span_{name}": f"{text}，毫秒/千步" for name, text in SPANS.items()},
    "efficiency": "相当于矩阵乘法速度的比例",
    "compute_share": "计算占设备时间",
    "copies_share": "拷贝占设备时间",
    "copied_bytes": "每次更新的拷贝，MB",
    "waits": "每次更新的等待次数",
    "extra_waits": "每次更新多余的等待次数",
    "gpu_use": "GPU 使用率（驱动的统计）",
    "gpu_busy": "GPU 真正在计算的时间",
    "process_peak": "进程内存峰值，GB",
    "peak_allocated": "显存分配峰值，GB",
    "reserved": "预留显存，GB",
    "steps_per_update": "每次更新的步数",
    "speed_up": "相对逐步调用网络的加速",
}

# What the wait detector says in English, as regular expressions, and the same in Chinese.
DETECTOR = {
    r"not seen: (\d+) other threads ran or were started inside the block": r"期间运行或启动的另外 \1 个线程",
    r"not seen: waits inside C\+\+ extensions, compiled graphs, CUDA libraries and the memory allocator": (
        "C++ 扩展、编译后的图、CUDA 库和显存分配器内部的等待"
    ),
    r"not seen: a synchronise that was imported by name before \((.*)\)": r"事先按名字导入的同步函数（\1）",
    r"a value inside another function": "在别的函数里取值",
    r"a tensor as an index": "用张量当下标",
    r"print of a tensor": "打印张量",
    r"pickle of a tensor": "序列化张量",
    r"linear algebra that checks its result": "会检查结果的线性代数运算",
    r"synchronise": "同步",
    r"synchronise a stream": "同步一个流",
    r"synchronise an event": "同步一个事件",
    r"a boolean index": "用布尔张量当下标",
    r"an index that the host holds": "用主机上的下标",
    r"a blocking copy to the device": "阻塞地拷贝到设备",
    r"a blocking copy to the host": "阻塞地拷贝回主机",
    r"a blocking copy inside another function": "在别的函数里阻塞地拷贝",
    r"repeat_interleave without output_size": "没有给 output_size 的 repeat_interleave",
    r"segment_reduce without unsafe=True": "没有用 unsafe=True 的 segment_reduce",
    r"Adam without fused=True: it cannot skip a step without asking the device": (
        "没有用 fused=True 的 Adam：不问设备就没法跳过一步"
    ),
}

PAGE = {
    "title": "{source} 的性能分析",
    "created": "{created}，命令：{command}",
    "seconds": "总秒数",
    "steps_per_second": "步/秒",
    "episodes_per_second": "局/秒",
    "actions_per_second": "合法动作/秒",
    "goals": "目标",
    "goal": "目标",
    "measured": "实测",
    "wanted": "要求",
    "outcome": "结果",
    "to_do": "怎么办",
    "warnings": "警告",
    "suggestions": "该改什么",
    "spans": "时间花在哪里",
    "host": "主机",
    "device": "设备",
    "span": "环节",
    "share": "占比",
    "seconds_head": "秒",
    "device_seconds": "设备上",
    "updates": "每次更新的秒数",
    "waits": "主机在哪里等设备",
    "place": "位置",
    "kind": "做了什么",
    "count": "每次更新",
    "needed": "必需吗",
    "no_waits": "没有发现。",
    "lists": "合法动作列表",
    "length": "合法动作数",
    "steps": "步数",
    "trials": "试过的改动",
    "change": "改动",
    "ratio": "倍数",
    "spread": "波动",
    "compare": "前后对比",
    "figure": "项目",
    "machine": "机器",
    "device_reading": "设备与内存",
    "settings": "设置",
    "defaults": "全部设置",
    "foot": "本页的内容都在 profile.json 里；没有从网络加载任何东西。",
    "language": "zh-CN",
}
ARENA = {
    "language": "zh-CN",
    "title": "擂台：{game}",
    "verdict": "{player} 最强：{rating:+.0f} 分，区间 {low:+.0f} 到 {high:+.0f}",
    "player": "玩家",
    "players": "名玩家",
    "games_head": "局对局",
    "deals": "牌局数",
    "rating": "等级分",
    "interval": "95 % 区间",
    "score": "得分率",
    "ratings": "等级分",
    "cross": "谁对谁得分多少",
    "cross_note": "每行的玩家对每列的玩家。格子里是各牌局得分的平均值，下面是它的 95 % 区间。",
    "reading": "怎样阅读",
    "points": "领先 100 分的玩家预计得分率为 0.64，领先 200 分为 0.76，领先 400 分为 0.91。",
    "zero": "{player} 为 0 分。",
    "mean": "所有玩家的平均值为 0 分。",
    "games": "共 {games:,} 局。统计的单位是牌局：双方用同样的牌坐遍每个座位；实力相同的玩家得 0.5。",
    "openings": "这个游戏没有随机性：每个牌局先随机走 {openings} 步。",
    "repeated": "有 {repeated:,} 个牌局与之前的完全相同，不计入。",
    "truncated": "有 {truncated:,} 局（{share:.1%}）在 max_turns 处被截断，按当时的得分计算。",
    "forfeits": "有 {forfeits:,} 局因玩家出错而判负。",
    "luck": "与等级分最不相符的一对：{player} 对 {against} 得 {score:.3f}，按等级分应为 {expected:.3f}。"
    "仅凭运气也常会如此。",
    "no_order": "与等级分最不相符的一对：{player} 对 {against} 得 {score:.3f}，按等级分应为 {expected:.3f}。"
    "这超出了运气的范围：在这里，每个玩家一个分数说不清谁胜谁。",
    "foot": "结果保存在本页旁边的 results.jsonl 中；没有从网络加载任何内容。",
}
